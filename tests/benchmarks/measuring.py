"""Shared by the benchmarks: rows of the table, CPU time, and training on the simulated testbed."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.training import DreamShard, TrainingConfig, TrainingState, with_algorithm
from dreamshard.training.config import Algorithm
from tests.benchmarks.pools import TRAINED, Dims, pools, tasks
from tests.helpers.laws import NOISE, SIMULATED, Law, LawTestbed
from tests.helpers.trained import learn

Row = dict[str, Any]
PLACED_ON = (4, 8, 128)
"""Numbers of devices of the tasks that placers are judged on."""
EXCHANGED_BYTES = 2**27  # more than a device sends at 800x128


def row(
    name: str,
    value: float,
    unit: str,
    bar: float | None = None,
    reference: float | None = None,
    *,
    more_is_better: bool = False,
) -> Row:
    """One line of the table; `ratio` above 1 beats the bar, or the reference where there is no bar."""
    against = bar if bar is not None else reference
    ratio = None if against is None or not value else (value / against if more_is_better else against / value)
    return {"name": name, "value": value, "unit": unit, "bar": bar, "reference": reference, "ratio": ratio}


def cpu_seconds(step: Callable[[], object], repeats: int) -> tuple[float, str]:
    """Median CPU seconds of `step` after one unmeasured call, and their range as text."""
    step()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return statistics.median(times), spread(times, 1e3, "ms")


def spread(values: Sequence[float], factor: float, unit: str) -> str:
    """`(3.1-3.4 ms, 5 runs)`."""
    if len(values) < 2:
        return "(1 run)"
    low, high = f"{min(values) * factor:.4g}", f"{max(values) * factor:.4g}"
    return f"({low}-{high}{' ' + unit if unit else ''}, {len(values)} runs)"


def split_note(is_split: bool) -> str:
    """What a row's text says of placements some of which split tables by columns; empty for whole tables."""
    return ", some tables split by columns" if is_split else ""


def peak_bytes() -> int:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@cache
def trained(
    dims: Dims, seed: int, measurements: int = 100, algorithm: Algorithm = "dreamshard", law: Law = SIMULATED
) -> TrainingState:
    """A state trained at 50x4 by a law from `measurements` placements; read-only."""
    config = with_algorithm(TrainingConfig(placements_per_iteration=measurements // 10), algorithm)
    return law_state(dims, seed, law, config)


def law_state(
    dims: Dims,
    seed: int,
    law: Law,
    config: TrainingConfig,
    method: DreamShard | None = None,
    *,
    exchanges: bool = True,
    noise: float = NOISE,
) -> TrainingState:
    """A state trained at 50x4 by a law, as in Algorithm 1; `method` instead of the algorithm that `config` names.

    Ten all-to-alls of each number of devices in `PLACED_ON` are measured as well, unless there are to be no `exchanges`.
    """
    pool, testbed = pools(dims)[0], LawTestbed(law, seed, noise)
    designed = designed_exchanges(PLACED_ON, None, EXCHANGED_BYTES) if exchanges else []
    measured = [testbed.measure_exchange(each) for each in designed]
    return learn(pool, tasks(pool, TRAINED, 50, seed=5), config, seed, testbed, exchanges=measured, method=method).state
