"""Whether all-to-alls measured by themselves let a placer serve 128 devices whose placements were measured on 4.

Placers learn from 100 placements of 50 tables on 4 devices, and from all-to-alls: none, ten of 128 devices, or some of 2
to 32 devices, from which a law extrapolates. Held-out tasks have 800 unseen tables on 128 devices, placed by the rules of
thumb and at random, and measured with the testbed's noise. The cost of a placer's own placements, without noise, is over the
best rule of thumb's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from dreamshard.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.cost_model import CostData, PredictionError, prediction_error
from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState, make_placer
from tests.benchmarks.annealing import true_ms
from tests.benchmarks.measuring import Row, row, spread, trained
from tests.benchmarks.pools import ALL_DIMS, Dims, Size, pools, tasks
from tests.helpers.testbeds import simulated

MANY = Size(800, 128)
MAPE_BAR, COST_BAR = 5.0, 1.0
EXCHANGES: dict[str, tuple[int, ...]] = {"none": (), "of 128": (128,), "of 2 to 32": (2, 4, 8, 16, 32)}
NUM_TASKS, RANDOM_EACH = 3, 3


def rows(quick: bool = False) -> Iterator[Row]:
    """Held-out error and cost by what was measured."""
    seeds = (0,) if quick else (0, 1, 2)
    for dims in ALL_DIMS:
        for name, counts in EXCHANGES.items():
            states = [trained(dims, seed, exchange_devices=counts) for seed in seeds]
            yield from _figures(f"placements on 4, exchanges {name}, {dims}", dims, states, _samples(dims))


def _figures(name: str, dims: Dims, states: Sequence[TrainingState], samples: Sequence[CostSample]) -> Iterator[Row]:
    errors = [_error(state, samples) for state in states]
    mape, rank = ([getattr(error, figure) for error in errors] for figure in ("mape", "spearman"))
    ranks = f"rank correlation {_mean(rank):.3f}"
    yield row(f"{name}: held-out error {spread(mape, 100, '%')}; {ranks}", 100 * _mean(mape), "%", MAPE_BAR)
    found = [_over_rules(state, dims) for state in states]
    yield row(f"{name}: cost / best rule of thumb's {spread(found, 1, '')}", _mean(found), "", COST_BAR)


def _error(state: TrainingState, samples: Sequence[CostSample]) -> PredictionError:
    return prediction_error(state.cost_network, CostData.of(samples, state.normaliser))


def _tasks(dims: Dims) -> list[PlacementTask]:
    return tasks(pools(dims)[1], MANY, NUM_TASKS, seed=100)


def _samples(dims: Dims) -> list[CostSample]:
    """Placements of the held-out tasks."""
    placers = [*(baselines()[rule] for rule in RULES_OF_THUMB), *(RandomPlacer(draw) for draw in range(RANDOM_EACH))]
    return [simulated().measure(task, placer.place(task)) for task in _tasks(dims) for placer in placers]


def _over_rules(state: TrainingState, dims: Dims) -> float:
    placer = replace(make_placer(state), columns=False)
    return _true_ms([placer.place(task) for task in _tasks(dims)], dims) / _best_rule_ms(dims)


@cache
def _best_rule_ms(dims: Dims) -> float:
    return min(_true_ms([baselines()[rule].place(task) for task in _tasks(dims)], dims) for rule in RULES_OF_THUMB)


def _true_ms(placements: Sequence[Placement], dims: Dims) -> float:
    exact = simulated(noise=0.0)
    return sum(true_ms(exact, task, placement) for task, placement in zip(_tasks(dims), placements, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
