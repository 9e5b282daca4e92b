"""Shared by the benchmarks: rows of the table, true costs, and training by a law."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.placement import Placement
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig, TrainingState, with_algorithm
from dreamshard.training.config import Algorithm
from tests.benchmarks.gains import Costs, gain_over
from tests.benchmarks.pools import TRAINED, Dims, pool_of, tasks
from tests.helpers.laws import NOISE, SIMULATED, Law, LawTestbed
from tests.helpers.trained import learn

Row, Place = dict[str, Any], Callable[[PlacementTask], Placement]
PLACED_ON = (4, 8, 128)
"""Numbers of devices of the tasks that placers are judged on."""
EXCHANGED_BYTES = 2**27  # more than a device sends at 800x128


def row(name: str, value: float, unit: str, bar=None, reference=None, *, more_is_better: bool = False) -> Row:
    """One line of the table; `ratio` above 1 beats the bar, or the reference where there is no bar."""
    against = bar if bar is not None else reference
    ratio = None if against is None or not value else (value / against if more_is_better else against / value)
    return {"name": name, "value": value, "unit": unit, "bar": bar, "reference": reference, "ratio": ratio}


@cache
def trained(dims: Dims, seed: int, algorithm: Algorithm = "dreamshard", law: Law = SIMULATED) -> TrainingState:
    """A state trained at 50x4 by a law from 100 placements; read-only."""
    return law_state(dims, seed, law, with_algorithm(TrainingConfig(), algorithm))


def law_state(dims: Dims, seed: int, law: Law, config, method=None, *, exchanges=True, noise=NOISE) -> TrainingState:
    """A state trained at 50x4 by a law, as in Algorithm 1; `method` instead of the algorithm that `config` names.

    Ten all-to-alls of each number of devices in `PLACED_ON` are measured as well, unless there are to be no `exchanges`.
    """
    pool, testbed = pool_of(dims, "train"), LawTestbed(law, seed, noise)
    designed = designed_exchanges(PLACED_ON, None, EXCHANGED_BYTES) if exchanges else []
    measured = [testbed.measure_exchange(exchange) for exchange in designed]
    return learn(pool, tasks(pool, TRAINED, 50, seed=5), config, seed, testbed, exchanges=measured, method=method).state


def true_ms(law: Law, tasks: Sequence[PlacementTask], place: Place) -> Costs:
    """`[T]` true costs; raises AssertionError if a placement is illegal."""
    placed = [(task, place(task)) for task in tasks]
    assert not any(violation(*pair) for pair in placed), f"an illegal placement of {tasks[0].name} or the like"
    return np.array([law.true_ms(*pair) for pair in placed])


def relative(name: str, costs: Costs, reference: Costs, bar: float | None = None) -> Row:
    """Mean cost over the mean reference `[S, T]`; the text has the 95 % interval."""
    gain = gain_over(costs, reference)
    interval = f" ({1 - gain.high:.3f} to {1 - gain.low:.3f}, {len(costs)} seeds)" if gain.low is not None else ""
    return row(name + interval, float(costs.mean() / reference.mean()), "", bar)
