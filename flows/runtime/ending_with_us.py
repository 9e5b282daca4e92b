"""Processes that end when this one ends, by whatever way: a shell waits until our end of a pipe closes.

The operating system closes the pipe even after `kill -9` or for want of memory. The shell is there before the process is,
so that nothing is left behind while a server starts. (Linux can send a signal at a parent's death, but counts the thread
that started the process as its parent.)
"""

import os
import subprocess
from collections.abc import Callable

Process = subprocess.Popen[bytes]

PATIENCE_S = 10
"""How long a process may take to end by itself before it is killed."""

_WATCH = """
read -r whom && { read -r _
kill -s TERM -- "$whom" && i=0 && while [ "$i" -lt "$0" ] && kill -s 0 -- "$whom"; do sleep 1; i=$((i + 1)); done
kill -s KILL -- "$whom"; } 2>/dev/null
"""

_watchers: dict[int, tuple[Process, int]] = {}  # by process; our ends of the pipes stay open as long as this one lives


def ending_with_us(start: Callable[[], Process], *, leads_group: bool = False) -> Process:
    """What `start` starts; it is ended when this process is gone.

    Args:
        start: starts the process and returns at once.
        leads_group: it has a process group of its own, which is ended as a whole.
    """
    theirs, ours = os.pipe()  # no other process inherits them
    watcher = subprocess.Popen(
        ["sh", "-c", _WATCH, str(PATIENCE_S)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal must not end the watcher first
    )
    os.close(theirs)
    try:
        process = start()
    except BaseException:
        _dismiss(watcher, ours)
        raise
    _watchers[process.pid] = watcher, ours
    os.write(ours, f"{'-' if leads_group else ''}{process.pid}\n".encode())
    return process


def has_ended(process: Process) -> None:
    """Forget a process that has ended, whose number may soon be another's."""
    _dismiss(*_watchers.pop(process.pid))


def _dismiss(watcher: Process, ours: int) -> None:
    watcher.kill()
    watcher.wait()
    os.close(ours)
