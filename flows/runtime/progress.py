"""Progress of a run, shown in the terminal and as a Prefect artifact."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

Listener = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) whenever a part of a stage is done."""

STAGES = {"ingest": 5, "tasks": 1, "train": 70, "evaluate": 20, "register": 3, "promote": 1}
"""The stages of the whole chain, and the share of its time that each usually takes, in percent."""

_ALONE = 1
"""The share of a stage that is not of the chain, and so is the only one of its flow."""

ANNOUNCEMENT = ""
"""The stage of sentences that belong to none."""

_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)
_artifact: ContextVar[tuple[UUID, tuple[str, ...]] | None] = ContextVar("_artifact", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for all progress during the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_artifact(*stages: str) -> Iterator[None]:
    """Show the flow run's progress on its page in Prefect during the block.

    Args:
        stages: stages of the flow; by default all stages of the chain.
    """
    if FlowRunContext.get() is None:
        yield
        return
    artifact = create_progress_artifact(0.0, key="dreamshard-progress", description="starting")
    shown = (artifact, stages or tuple(STAGES)) if isinstance(artifact, UUID) else None  # a coroutine in async flows
    token = _artifact.set(shown)
    try:
        yield
    finally:
        _artifact.reset(token)


def announce(sentence: str) -> None:
    """Say what was decided, in the log of the run and before the next progress bar."""
    get_run_logger().info("%s", sentence)
    report_progress(ANNOUNCEMENT, 1, 1, sentence)


def report_progress(stage: str, done: int, total: int, note: str = "") -> None:
    """Report that `done` of `total` parts of `stage` are finished."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total, note)


def publish_progress(stage: str, done: int, total: int, note: str = "") -> None:
    """Like `report_progress`, but also updates the percentage in Prefect: for whole steps, not for every table."""
    report_progress(stage, done, total, note)
    shown = _artifact.get()
    if shown is not None and stage in shown[1]:
        percent = overall_percent(stage, done, total, shown[1])
        update_progress_artifact(shown[0], percent, f"{stage}: {done} of {total} {note}".strip())


def overall_percent(stage: str, done: int, total: int, stages: Sequence[str] = tuple(STAGES)) -> float:
    """Percentage of `stages` that is finished when `done` of `total` parts of `stage` are."""
    shares = {name: STAGES.get(name, _ALONE) for name in stages}
    before = sum(shares[name] for name in stages[: stages.index(stage)])
    return 100 * (before + shares[stage] * done / max(total, 1)) / sum(shares.values())
