"""CPU time to place: the policy alone, and with search.

The references are the authors' program on one core; it places by the policy alone.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from dreamshard.tasks import violation
from tests.benchmarks.measuring import Row, Size, row, tasks, trained
from tests.helpers.trained import make_placer

REPEATS, HUGE = 25, Size(10_000, 1024)
POLICY = ((Size(50, 4), 1.0, 26.0), (Size(800, 4), None, 720.0), (Size(800, 128), 20.0, 1120.0))
SEARCH = ((Size(50, 4), 8.0, None), (Size(800, 128), 150.0, None), (HUGE, 5000.0, None))


def rows(quick: bool = False) -> Iterator[Row]:
    """All rows; the largest size comes last, and is placed once."""
    searching = make_placer(trained("mixed", 0))
    policy = replace(searching, inference="policy")
    for label, placer, sizes in (("policy alone", policy, POLICY), ("with search", searching, SEARCH)):
        for size, bar, reference in sizes[:-1] if quick else sizes:
            task, times_ms = tasks("mixed", "test", size, 1, seed=0)[0], []
            placer.place(task)  # compiles
            for _ in range(1 if size == HUGE else 3 if quick else REPEATS):
                began = time.process_time()
                placement = placer.place(task)
                times_ms.append(1e3 * (time.process_time() - began))
            assert not violation(task, placement), f"an illegal placement of {size}"
            name = f"placing {size}, {label} ({min(times_ms):.4g}-{max(times_ms):.4g} ms, {len(times_ms)} runs)"
            yield row(name, median(times_ms), "ms CPU", bar, reference)
