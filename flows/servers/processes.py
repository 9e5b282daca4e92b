"""Child processes that serve over HTTP: started with a log file, waited for, and ended."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

LOOPBACK = "127.0.0.1"
STARTUP_S = 600.0
"""The first start creates two databases, which takes minutes on a busy machine."""
_PATIENCE_S = 10.0

Process = subprocess.Popen[bytes]


def check_free(port: int) -> None:
    """Check that a server can listen on a port of this machine.

    Raises:
        ValueError: something listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ValueError(
                f"port {port} of {LOOPBACK} is taken; end what listens there, or give another port"
            ) from error


@contextmanager
def child_process(name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path) -> Iterator[Process]:
    """Run a process in a process group of its own while the block runs; its output goes to `name`.log."""
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others in order
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: Process) -> None:
    """End a process and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)


def wait_until_healthy(url: str, process: Process, log: Path) -> None:
    """Wait until the server answers `url` with a page.

    Args:
        url: a page of the server.
        process: the server.
        log: its output.

    Raises:
        RuntimeError: the process ended, or did not answer in time; the message has its last lines.
    """
    deadline = time.monotonic() + STARTUP_S
    while process.poll() is None and time.monotonic() < deadline:
        if answers(url):
            return
        time.sleep(0.2)
    last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
    raise RuntimeError(f"{log.stem} does not answer at {url}: {last}; see {log}")


def answers(url: str) -> bool:
    """Whether a server has a page at `url`, perhaps behind a login."""
    try:
        return httpx.get(url, timeout=5.0).status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
    except httpx.TransportError:
        return False
