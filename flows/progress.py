"""How far a run is: one call from the steps, shown in the terminal and as a Prefect artifact."""

from collections.abc import Callable, Iterator
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
_artifact: ContextVar[UUID | None] = ContextVar("_artifact", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of all progress made inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_artifact() -> Iterator[None]:
    """Show the chain's progress on its page in Prefect while the block runs."""
    if FlowRunContext.get() is None:
        yield
        return
    artifact = create_progress_artifact(0.0, key="dreamshard-progress", description="starting")
    token = _artifact.set(artifact if isinstance(artifact, UUID) else None)  # a coroutine only in async flows
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
    """`advance`, and the chain's overall percentage in Prefect as well: for whole steps, not for every table."""
    advance(stage, done, total, note)
    artifact = _artifact.get()
    if artifact is not None:
        update_progress_artifact(
            artifact, overall_percent(stage, done, total), f"{stage}: {done} of {total} {note}".strip()
        )


def overall_percent(stage: str, done: int, total: int) -> float:
    """Percent of the chain that is finished when `done` of `total` parts of `stage` are."""
    names = list(STAGES)
    before = sum(STAGES[name] for name in names[: names.index(stage)])
    return min(100.0, before + STAGES[stage] * done / max(total, 1))
