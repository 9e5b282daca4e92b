"""How far a run is: one call from the steps, shown in the terminal and as a Prefect artifact."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

Listener = Callable[[str, int, int, str], None]
"""Told (stage, done, total, note) whenever something is done."""

STAGES = {"ingest": 5, "tasks": 1, "train": 70, "evaluate": 20, "register": 3, "promote": 1}
"""The chain's stages and their usual share of its time, in percent."""

_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)
_artifact: ContextVar[tuple[UUID, tuple[str, ...]] | None] = ContextVar("_artifact", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of all progress made inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_artifact(*stages: str) -> Iterator[None]:
    """Show how far the flow run is on its page in Prefect while the block runs.

    Args:
        stages: that the flow goes through; by default all of the chain's.
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


def advance(stage: str, done: int, total: int, note: str = "") -> None:
    """Say that `done` of `total` parts of `stage` are finished."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total, note)


def publish(stage: str, done: int, total: int, note: str = "") -> None:
    """`advance`, and the flow's overall percentage in Prefect as well: for whole steps, not for every table."""
    advance(stage, done, total, note)
    shown = _artifact.get()
    if shown is not None and stage in shown[1]:
        percent = overall_percent(stage, done, total, shown[1])
        update_progress_artifact(shown[0], percent, f"{stage}: {done} of {total} {note}".strip())


def overall_percent(stage: str, done: int, total: int, stages: Sequence[str] = tuple(STAGES)) -> float:
    """Percent of `stages` that is finished when `done` of `total` parts of `stage` are."""
    before = sum(STAGES[name] for name in stages[: stages.index(stage)])
    whole = sum(STAGES[name] for name in stages)
    return 100 * (before + STAGES[stage] * done / max(total, 1)) / whole
