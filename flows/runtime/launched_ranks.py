"""The ranks that a launcher started with this process, if any; imports no Prefect, which reads its settings when imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dreamshard.testbeds.cluster.launcher_variables import num_launched
from dreamshard.testbeds.cluster.rank_source import RankSource

_ranks: ContextVar[RankSource | None] = ContextVar("_ranks", default=None)


@contextmanager
def on_ranks(ranks: RankSource) -> Iterator[None]:
    """Measure on these ranks for the block, where `cluster` or `auto` is asked for."""
    token = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(token)


def for_testbed(name: str) -> RankSource | None:
    """The ranks that the testbed called `name` measures on; None if it starts its own or needs none.

    Raises:
        ValueError: a launcher started this process, but not so that its ranks take part.
    """
    if name not in ("auto", "cluster", "cluster:cpu", "cluster:cuda"):
        return None
    ranks = _ranks.get()
    num_processes = num_launched(os.environ)
    if ranks is None and num_processes > 1:
        raise ValueError(
            f"this is one of {num_processes} processes of a launcher, and each of them would run the whole command; start "
            "`-m flows.cli.ranks` with it instead (docs/many-hosts.md)"
        )
    return ranks
