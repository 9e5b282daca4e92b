"""Which process runs a run, as tags, so that others see when it is gone; imports no MLflow, which takes seconds."""

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import psutil

from storage.mlflow_store.presence import LOCAL
from storage.settings import Settings

HOST, PROCESS = "dreamshard.host", "dreamshard.process"
_CLOCK_S = 60.0  # by which a host's clock may be set while a process runs
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BEGAN = 19  # of the fields of /proc/PID/stat after the name: when the process began
_RUNNING = """
select process.value from runs
join tags as host on host.run_uuid = runs.run_uuid and host.key = ? and host.value = ?
join tags as process on process.run_uuid = runs.run_uuid and process.key = ?
where runs.status = 'RUNNING' and runs.lifecycle_stage = 'active'
"""


def this_process() -> dict[str, str]:
    """Tags that identify this process."""
    return {HOST: this_host(), PROCESS: identity(psutil.Process(os.getpid()))}


def identity(process: psutil.Process) -> str:
    """Its number, and when it began, since numbers are used again: on Linux since which start of the system, in ticks."""
    if not _BOOT.exists():
        return f"{process.pid} {process.create_time():.0f}"
    fields = Path(f"/proc/{process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return f"{process.pid} {fields[_BEGAN]} {_BOOT.read_text().strip()}"


def is_alive(identified: str) -> bool:
    """Whether the process of a tag `PROCESS` of this host still runs.

    One that has ended, and that its parent has not asked about, is gone: in a container, perhaps nobody ever asks.
    """
    pid, *began = identified.split()
    try:
        process = psutil.Process(int(pid))
        if len(began) > 1:
            is_same = identity(process) == identified
        else:  # written where the system, or an earlier release, knows only the time by a clock that may be set
            is_same = abs(process.create_time() - float(began[0])) < _CLOCK_S
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return False


def any_abandoned(settings: Settings) -> bool:
    """Whether MLflow's database on this host, if it is there, has a run as running whose process on this host is gone."""
    path = Path(settings.tracking_uri.removeprefix(LOCAL))
    if not settings.tracking_uri.startswith(LOCAL) or not os.access(path, os.W_OK):
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(_RUNNING, (HOST, this_host(), PROCESS)).fetchall()
    except sqlite3.Error:  # busy, or laid out by another MLflow, whose own client says what is wrong
        return False
    return not all(is_alive(identified) for (identified,) in found)


def this_host(machine: Path = Path("/etc/machine-id")) -> str:
    """This host, or the container on it: in another, numbers of processes mean others.

    Args:
        machine: tells hosts of one name apart, whose processes have a namespace of the same number.
    """
    namespace = Path("/proc/self/ns/pid")
    number = str(namespace.stat().st_ino) if namespace.exists() else ""
    identity = machine.read_text().strip() if machine.is_file() else ""
    return " ".join(filter(None, (socket.gethostname(), identity, number)))
