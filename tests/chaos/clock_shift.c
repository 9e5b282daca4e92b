/* Preloaded into a command: its clock is CLOCK_SHIFT_S seconds off, and time that has passed is measured as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *seconds = getenv("CLOCK_SHIFT_S"); return seconds ? atol(seconds) : 0; }
int clock_gettime(clockid_t clock, struct timespec *found) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, found);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift();
  return failed;
}
int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  struct timespec now; (void)zone; clock_gettime(CLOCK_REALTIME, &now);
  found->tv_sec = now.tv_sec; found->tv_usec = now.tv_nsec / 1000; return 0;
}
time_t time(time_t *found) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
