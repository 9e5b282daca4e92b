"""CPU time to place: the policy alone, and with search.

The references are the authors' program on one core; it places by the policy alone.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from dreamshard.placement import Placement
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.benchmarks.measuring import Row, cpu_seconds, peak_bytes, row, trained
from tests.benchmarks.pools import Size, large_task
from tests.helpers.trained import make_placer

POLICY = ((Size(50, 4), 1.0, 26.0), (Size(800, 4), None, 720.0), (Size(800, 128), 20.0, 1120.0))
SEARCH = ((Size(50, 4), 8.0), (Size(800, 128), 150.0))
HUGE = Size(10_000, 1024)


class _Places(Protocol):
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement: ...


def rows(quick: bool = False) -> Iterator[Row]:
    """All rows; the largest size comes last."""
    state = trained("mixed", 0, 30)
    searching = make_placer(state)
    policy = replace(searching, inference="policy")
    repeats = 3 if quick else 25
    for size, bar, reference in POLICY:
        yield _placing("policy alone", policy, size, repeats, bar, reference)
    for size, bar in SEARCH:
        yield _placing("with search", searching, size, repeats, bar, None)
    if not quick:
        yield from _huge(searching)


def _placed(placer: _Places, size: Size):
    task = large_task(size)
    return lambda: placer.place(task)


def _placing(label: str, placer: _Places, size: Size, repeats: int, bar: float | None, reference: float | None) -> Row:
    seconds, beside = cpu_seconds(_placed(placer, size), repeats)
    return row(f"placing {size}, {label} {beside}", 1e3 * seconds, "ms CPU", bar, reference)


def _huge(placer: _Places) -> Iterator[Row]:
    """Check that the largest size ends with a legal placement; its time, and the peak memory of this process."""
    task, before = large_task(HUGE), peak_bytes()
    began = time.process_time()
    legal = not violation(task, placer.place(task))
    seconds = time.process_time() - began
    yield row(f"placing {HUGE}, with search ({'legal' if legal else 'ILLEGAL'})", seconds, "s CPU", 5.0)
    yield row(f"placing {HUGE}: peak memory (before it {before / 2**20:.0f})", peak_bytes() / 2**20, "MiB")
