"""How a flow run fails: its state is the sentence of the error, its log has that sentence first, and MLflow's runs end too.

The traceback of an error whose message is for people is with MLflow's run (`error/traceback.txt`), and in Prefect's log below
the sentence if `PREFECT_LOGGING_LEVEL` is DEBUG. That of any other error is in the log once.
"""

import logging
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Failed

from dreamshard.files.text import FOR_PEOPLE, error_sentence, without_passwords
from storage.mlflow_store import runs
from storage.settings import Settings

Result = TypeVar("Result")

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
_REPETITIONS = ("Finished in state Failed", "Finished in state Crashed")  # of a task run, after its error
_IS_LOGGED = "_is_logged"  # attribute of an error


def failing_in_one_sentence(body: Callable[..., Result]) -> Callable[..., Result]:
    """Let a flow end in the state Failed with the sentence of an error for people; its caller gets the error itself."""

    @wraps(body)
    def call(*args: Any, **kwargs: Any) -> Result:
        try:
            return body(*args, **kwargs)
        except FOR_PEOPLE as error:
            if FlowRunContext.get() is None:  # called as a plain function
                raise
            if not hasattr(error, _IS_LOGGED):
                get_run_logger().error("%s", error, exc_info=error)
            failed: Any = Failed(message=error_sentence(error), data=error)
            return failed  # type: ignore[no-any-return]

    return call


def end_runs(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Mark what a cancelled or crashed flow run has left open in MLflow as KILLED."""
    runs.end_killed(
        Settings.from_environment(), str(flow_run.id), f"{flow.name} was {state.name}: {state.message or ''}"
    )


class SentenceFirst(logging.Filter):
    """Makes the log record of an error begin with its sentence, shows each traceback at most once, and no password."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record that only repeats the sentence of the one before."""
        said = record.getMessage()
        if said != without_passwords(said):
            record.msg, record.args = without_passwords(said), ()
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return record.name != "prefect.task_runs" or not str(record.msg).startswith(_REPETITIONS)
        is_repeated, is_for_people = hasattr(error, _IS_LOGGED), isinstance(error, FOR_PEOPLE)
        vars(error)[_IS_LOGGED] = True
        if is_for_people:
            record.msg, record.args = error_sentence(error), ()
        if is_repeated or (is_for_people and not logging.getLogger(record.name).isEnabledFor(logging.DEBUG)):
            record.exc_info = None
        elif record.exc_info:
            record.exc_text = without_passwords("".join(traceback.format_exception(error))).rstrip("\n")
        return not (is_repeated and is_for_people)


def install() -> None:
    """Filter the loggers of Prefect's runs; once per process."""
    for logger in map(logging.getLogger, _LOGGERS):
        if not any(isinstance(known, SentenceFirst) for known in logger.filters):
            logger.addFilter(SentenceFirst())
