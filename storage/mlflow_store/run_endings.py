"""How runs end: FINISHED, FAILED with the sentence of the error, KILLED if they were cancelled or their process is gone."""

import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dreamshard.formatting import error_sentence
from storage.filesystem import failures

ERROR = "error"
"""Tag of a run that failed or was killed: why, in one sentence."""
TRACEBACK = "error/traceback.txt"
"""File of a run that failed, for programmers."""

_DESCRIPTION = "mlflow.note.content"
_HOST, _PROCESS = "dreamshard.host", "dreamshard.process"
TAGS = frozenset({ERROR, _DESCRIPTION})
"""Tags that a run loses when it is resumed."""
_CLOCK_S = 60.0  # by which a host's clock may be set while a process runs
_LONGEST = 5000  # characters of a tag

logger = logging.getLogger(__name__)


def this_process() -> dict[str, str]:
    """Tags that identify this process, so that others see when it is gone."""
    return {_HOST: _host(), _PROCESS: _identity(psutil.Process(os.getpid()))}


@contextmanager
def ending(tracking: Callable[[], MlflowClient], run: str) -> Iterator[None]:
    """End the run with the block; what the block raised is raised again.

    Prefect cancels by an exception that is no `Exception`, as Ctrl-C and `sys.exit` are none.
    """
    try:
        yield
    except Exception as error:
        _end(tracking(), run, "FAILED", error_sentence(error))
        try:
            tracking().log_text(run, "".join(traceback.format_exception(error)), TRACEBACK)
        except failures(MlflowException) as lost:  # the error of the block matters more
            logger.warning("the traceback of run %s could not be kept: %s", run, lost)
        raise
    except BaseException:
        _end(tracking(), run, "KILLED", "cancelled or interrupted while it ran")
        raise
    tracking().set_terminated(run, "FINISHED")


def end_killed(tracking: MlflowClient, experiment: str, why: str, tags: Mapping[str, str]) -> int:
    """Mark runs that carry `tags` and are not ended, and the runs below them, as KILLED; returns how many there were."""
    found = _running(tracking, experiment, tags)
    for run in found:
        found += _running(tracking, experiment, {"mlflow.parentRunId": run})
    for run in reversed(found):
        _end(tracking, run, "KILLED", why)
    return len(found)


def end_abandoned(tracking: MlflowClient, experiment: str) -> int:
    """Mark runs of processes of this host that are gone, e.g. after `kill -9`, as KILLED; returns how many there were."""
    gone = [
        run
        for run in _running(tracking, experiment, {_HOST: _host()})
        if not _is_alive(tracking.get_run(run).data.tags)
    ]
    for run in gone:
        _end(tracking, run, "KILLED", "its process ended without a word, e.g. by kill -9 or by lack of memory")
    return len(gone)


def _end(tracking: MlflowClient, run: str, status: str, why: str) -> None:
    for tag in TAGS:
        tracking.set_tag(run, tag, why[:_LONGEST])
    tracking.set_terminated(run, status)


def _running(tracking: MlflowClient, experiment: str, tags: Mapping[str, str]) -> list[str]:
    conditions = ["attributes.status = 'RUNNING'", *(f"tags.`{name}` = '{value}'" for name, value in tags.items())]
    return [str(run.info.run_id) for run in tracking.search_runs([experiment], " and ".join(conditions))]


def _is_alive(tags: Mapping[str, str]) -> bool:
    pid, began = tags[_PROCESS].split()
    try:
        return bool(abs(psutil.Process(int(pid)).create_time() - float(began)) < _CLOCK_S)
    except psutil.NoSuchProcess:
        return False


def _host(machine: Path = Path("/etc/machine-id")) -> str:
    """This host, or the container on it: in another, numbers of processes mean others.

    Args:
        machine: tells hosts of one name apart, whose processes have a namespace of the same number.
    """
    namespace = Path("/proc/self/ns/pid")
    number = str(namespace.stat().st_ino) if namespace.exists() else ""
    identity = machine.read_text().strip() if machine.is_file() else ""
    return " ".join(filter(None, (socket.gethostname(), identity, number)))


def _identity(process: psutil.Process) -> str:
    """Its number and when it began: numbers are used again."""
    return f"{process.pid} {process.create_time():.0f}"
