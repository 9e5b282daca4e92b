"""What a kernel does for one table, counted: the input of `law.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KernelWork:
    """Counts of one table in one kernel.

    Attributes:
        warps: warps with work.
        steps: dependent steps of all warps together; in a step, a warp waits for its loads once.
        longest: steps of the longest warp.
        loads_per_step: rows that a warp loads at once, on average.
        lines: requests for cache lines by the groups of lanes that read or write a row: one for each line that a coalesced
            access of a group touches.
        sectors: sectors of these lines, those that miss included.
        distinct: distinct sectors among those that are read again, at least once each.
        streamed_bytes: read once from memory: indices, offsets, optimizer state.
        written_bytes: to memory, in whole sectors.
        instructions: of all warps.
        atomics: sectors changed by atomic additions in the cache.
    """

    warps: float = 0.0
    steps: float = 0.0
    longest: float = 0.0
    loads_per_step: float = 1.0
    lines: float = 0.0
    sectors: float = 0.0
    distinct: float = 0.0
    streamed_bytes: float = 0.0
    written_bytes: float = 0.0
    instructions: float = 0.0
    atomics: float = 0.0
