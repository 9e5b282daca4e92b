"""Child processes that serve over HTTP: started with a log file, waited for, and ended with all their descendants."""

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from flows.runtime.ending_with_us import ending_with_us, has_ended

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
PROJECT = Path(__file__).resolve().parents[2]
STARTUP_S = 600.0
"""The first start creates two databases, which takes minutes on a busy machine."""

LOG_BYTES = 64 * 2**20
"""From this size on, a log begins anew with the next start of its process."""

_END_BYTES = 8192  # of a log, of which the last lines are shown

Process = subprocess.Popen[bytes]

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a server of this machine is behind no proxy


def free_port(preferred: int, host: str = LOOPBACK) -> int:
    """`preferred` if nothing listens there, else a port that the system chooses, where only this machine is to know it.

    Raises:
        OSError: others reach `host` and know the server by a port that is taken, or `host` is no interface of this machine.
    """
    for port in (preferred, 0) if is_loopback(host) else (preferred,):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(
        f"no server can listen on port {preferred} of {host}: it is taken, or {host} is no address of this machine. Workers "
        "and browsers elsewhere would look for the server there, so no other port is chosen; end what listens there, or give "
        "another --host or port"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches servers at `host`."""
    return host == "localhost" or host.startswith("127.")


def with_project(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with this project on Python's path."""
    paths = os.pathsep.join([str(PROJECT), *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, "PYTHONPATH": paths}


@contextmanager
def child_process(name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path) -> Iterator[Process]:
    """Keep a process running while the block runs, or until this process is killed; its output goes to `name`.log.

    A log that has become longer than `LOG_BYTES` is kept as `name`.log.1, in place of an earlier one.
    """
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name}.log"
    if path.is_file() and path.stat().st_size > LOG_BYTES:
        path.replace(logs / f"{name}.log.1")
    with path.open("ab") as log:

        def start() -> Process:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others in order
            )

        process = ending_with_us(start, leads_group=True)
    try:
        yield process
    finally:
        end(process)
        has_ended(process)


class StoppedError(Exception):
    """Somebody ended the start of the servers, by Ctrl-C or SIGTERM."""


def raise_if_set(stop: threading.Event | None) -> None:
    """Raise `StoppedError` once the event is set."""
    if stop is not None and stop.is_set():
        raise StoppedError


def wait_until_healthy(
    url: str,
    process: Process,
    log: Path,
    meanwhile: Mapping[Path, Process] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Wait until the server answers `url` with a page.

    Args:
        url: a page that needs no login.
        process: the server.
        log: its output.
        meanwhile: other processes that start at the same time, by their logs; one that fails ends the waiting too.
        stop: ends the waiting once it is set.

    Raises:
        StoppedError: `stop` was set.
        RuntimeError: a process ended, or the server did not answer in time; the message ends with its last lines.
    """
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline:
        raise_if_set(stop)
        if answers(url):
            return
        for its_log, each in {log: process, **(meanwhile or {})}.items():
            if each.poll() not in (None, 0) or process.poll() is not None:
                raise RuntimeError(
                    f"{its_log.stem} ended while starting for {url}: {last_lines(its_log)}; see {its_log}"
                )
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer within {STARTUP_S:.0f} s, so nothing can be run on it; see {log}")


def answers(url: str) -> bool:
    """Whether a server answers `url` with 200; asked often, and httpx would read all certificates each time."""
    try:
        with _DIRECT.open(url, timeout=5.0) as answer:
            return bool(answer.status == http.client.OK)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False  # not listening yet, or not ready


def last_lines(log: Path) -> str:
    """The end of a log, on one line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _END_BYTES))
        return " | ".join(file.read().decode(errors="replace").strip().splitlines()[-3:])


def stop_signal() -> threading.Event:
    """From now on, Ctrl-C and SIGTERM set the event that this returns."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def wait_for_any(processes: Mapping[str, Process], stop: threading.Event) -> str | None:
    """Block until `stop` is set or one of the processes ends; returns the name of the process that ended."""
    ended: list[str] = []

    def watch(name: str, process: Process) -> None:
        process.wait()
        ended.append(name)
        stop.set()

    for name, process in processes.items():
        threading.Thread(target=watch, args=(name, process), daemon=True).start()
    stop.wait()
    return ended[0] if ended else None


def end(process: Process, patience_s: float = 10.0) -> None:
    """End a process and all its descendants: terminate it first, kill what is left after `patience_s`."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        process.wait()
        return
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=patience_s)
    for member in alive:
        if member.is_running():
            member.kill()
    psutil.wait_procs(alive, timeout=patience_s)
    process.wait()
