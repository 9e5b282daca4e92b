"""Progress of a run, shown in the terminal and as a Prefect artifact."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

Listener = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) whenever a part of a stage is done."""

STAGES = {"ingest": 5, "tasks": 1, "train": 70, "evaluate": 20, "register": 3, "promote": 1}
"""The stages of the whole chain, and the share of its time that each usually takes, in percent."""

ANNOUNCEMENT = ""
"""The stage of sentences that belong to none."""

_LEAST_S = 2.0
"""Between two updates of an artifact."""


@dataclass
class _Artifact:
    """The progress of a flow run on its page in Prefect."""

    id: UUID
    stages: Sequence[str]
    updated: float = 0.0


_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)
_artifact: ContextVar[_Artifact | None] = ContextVar("_artifact", default=None)


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
    """Show the flow run's progress on its page in Prefect during the block; by default of all stages of the chain."""
    if FlowRunContext.get() is None:
        yield
        return
    artifact = create_progress_artifact(0.0, key="dreamshard-progress", description="starting")
    shown = _Artifact(artifact, stages or tuple(STAGES)) if isinstance(artifact, UUID) else None
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
    shown = _artifact.get()
    now = time.monotonic()
    if shown is not None and stage in shown.stages and (done == total or now >= shown.updated + _LEAST_S):
        shown.updated = now
        percent = overall_percent(stage, done, total, shown.stages)
        update_progress_artifact(shown.id, percent, f"{stage}: {done} of {total} {note}".strip())


def overall_percent(stage: str, done: int, total: int, stages: Sequence[str] = tuple(STAGES)) -> float:
    """Percentage of `stages` that is finished when `done` of `total` parts of `stage` are."""
    shares = {name: STAGES.get(name, 1) for name in stages}
    before = sum(shares[name] for name in stages[: stages.index(stage)])
    return 100 * (before + shares[stage] * done / max(total, 1)) / sum(shares.values())
