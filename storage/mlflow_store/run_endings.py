"""How runs end: FINISHED, FAILED with the sentence of the error, KILLED if they were cancelled."""

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dreamshard.files.text import error_sentence, without_passwords
from storage.filesystem import failures

ERROR = "error"
"""Tag of a run that failed or was killed: why, in one sentence."""
TRACEBACK = "error/traceback.txt"
"""File of a run that failed, for programmers."""

_DESCRIPTION = "mlflow.note.content"
TAGS = frozenset({ERROR, _DESCRIPTION})
"""Tags that a run loses when it is resumed."""
_LONGEST = 5000  # characters of a tag

logger = logging.getLogger(__name__)


@contextmanager
def ending(tracking: Callable[[], MlflowClient], run: str) -> Iterator[None]:
    """End the run with the block; what the block raised is raised again.

    Prefect cancels by an exception that is no `Exception`, as Ctrl-C and `sys.exit` are none.
    """
    try:
        yield
    except Exception as error:
        try:
            _end(tracking(), run, "FAILED", error_sentence(error))
            tracking().log_text(run, without_passwords("".join(traceback.format_exception(error))), TRACEBACK)
        except failures(MlflowException) as lost:  # the error of the block matters more
            logger.warning("how run %s failed could not be kept: %s", run, lost)
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


def _end(tracking: MlflowClient, run: str, status: str, why: str) -> None:
    for tag in TAGS:
        tracking.set_tag(run, tag, why[:_LONGEST])
    tracking.set_terminated(run, status)


def _running(tracking: MlflowClient, experiment: str, tags: Mapping[str, str]) -> list[str]:
    conditions = ["attributes.status = 'RUNNING'", *(f"tags.`{name}` = '{value}'" for name, value in tags.items())]
    return [str(run.info.run_id) for run in tracking.search_runs([experiment], " and ".join(conditions))]
