"""The ranks that torchrun started with this process, if any; imports no Prefect, which reads its settings when imported."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dreamshard.testbeds.ranks import Ranks, num_launched

_ranks: ContextVar[Ranks | None] = ContextVar("_ranks", default=None)


@contextmanager
def on_ranks(ranks: Ranks) -> Iterator[None]:
    """Measure on these ranks for the block, if `cluster` or `auto` is requested."""
    token = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(token)


def for_testbed(name: str) -> Ranks | None:
    """The ranks that the testbed called `name` measures on; None if it starts its own or needs none.

    Raises:
        ValueError: torchrun started this process, but not so that its ranks take part.
    """
    if name not in ("auto", "cluster", "cluster:cpu", "cluster:cuda"):
        return None
    ranks = _ranks.get()
    if ranks is None and num_launched() > 1:
        raise ValueError(
            f"torchrun started {num_launched()} processes, and each of them would run the whole command; start "
            "`-m flows.cli.ranks` with it instead (docs/many-hosts.md)"
        )
    return ranks
