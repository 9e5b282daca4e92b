"""The ranks that torchrun started with this process, if any; imports no Prefect, which reads its settings when imported."""

from contextvars import ContextVar

from dreamshard.testbeds.ranks import Ranks, num_launched

RANKS: ContextVar[Ranks | None] = ContextVar("RANKS", default=None)
"""The ranks that `cluster` and `auto` measure on, if torchrun started this process."""


def for_testbed(name: str) -> Ranks | None:
    """The ranks that the testbed called `name` measures on; None if it starts its own or needs none.

    Raises:
        ValueError: torchrun started this process, but not so that its ranks take part.
    """
    if name not in ("auto", "cluster", "cluster:cpu", "cluster:cuda"):
        return None
    ranks = RANKS.get()
    if ranks is None and num_launched() > 1:
        raise ValueError(
            f"torchrun started {num_launched()} processes, and each of them would run the whole command; start "
            "`-m flows.cli.ranks` with it instead (docs/many-hosts.md)"
        )
    return ranks
