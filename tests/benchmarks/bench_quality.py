"""Quality of placements and predictions on unseen tables: true cost over that of long annealing, by four laws.

Trained at 50x4 only, from 100 placements and all-to-alls of 4, 8 and 128 devices, measured with noise; placed within the
default budget. All tables stay whole, as in annealing. A row also has the greedy placement on the same network, the best rule
of thumb, predicted over true cost of dreamshard's own placements, and how well the network predicts placements by rules of
thumb and at random. Intervals are of 95 % over tasks and seeds. `--quick` uses one seed and tasks of validation tables.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dreamshard.cost_model import mean_relative_error
from dreamshard.evaluation import mean_rank_correlation
from dreamshard.placement import Placement
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState
from tests.benchmarks.annealing import annealed_ms
from tests.benchmarks.bench_paper_table import pool_of
from tests.benchmarks.gains import Costs, gain_over
from tests.benchmarks.measuring import Row, row, trained
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, Memory, Size, tasks
from tests.helpers.laws import LAWS, SIMULATED, Law
from tests.helpers.trained import make_placer

COUNTS = {Size(20, 4): 10, TRAINED: 10, Size(100, 8): 8, Size(200, 8): 5}
BARS = {Size(20, 4): 1.015, TRAINED: 1.01, Size(100, 8): 1.015, Size(200, 8): 1.01}
RANDOM_EACH = 6
Place = Callable[[PlacementTask], Placement]


@dataclass(frozen=True)
class Set:
    """Tasks judged together."""

    law: Law
    dims: Dims
    size: Size
    quick: bool
    memory: Memory = "generous"

    def __str__(self) -> str:
        return f"{self.law.name}, {self.size}, {self.dims}" + (", tight memory" if self.memory == "tight" else "")

    @property
    def seeds(self) -> Sequence[int]:
        return (0,) if self.quick else (0, 1, 2)


def rows(quick: bool = False) -> Iterator[Row]:
    """All sets of tasks, and the predictions of the paper's network."""
    sets = [Set(law, dims, size, quick) for law in LAWS for dims in ALL_DIMS for size in COUNTS]
    for each in [*sets, Set(SIMULATED, "mixed", TRAINED, quick, "tight")]:
        yield _judged(each)
    for dims in ALL_DIMS:
        each = Set(SIMULATED, dims, TRAINED, quick)
        states = [trained(dims, seed, algorithm="paper") for seed in each.seeds]
        error, ranks = _predictions(each, states)
        yield row(f"{each}, the paper's network: rank correlation {ranks:.3f}, error of predictions", 100 * error, "%")


def _judged(each: Set) -> Row:
    states = [trained(each.dims, seed, law=each.law) for seed in each.seeds]
    greedy = [GreedyCostPlacer(state.cost_network, state.normaliser).place for state in states]
    rules = [_true_ms(each, baselines()[rule].place).mean() for rule in RULES_OF_THUMB]
    least, (error, ranks) = _annealed(each), _predictions(each, states)
    others = [np.mean([_true_ms(each, place) for place in greedy]), min(rules)] / least.mean()
    own = [(task, _own(state)(task), state) for state in states for task in _tasks(each)]
    honest = np.mean(
        [
            float(make_placer(state).predict(task, at).overall_ms()) / each.law.true_ms(task, at)
            for task, at, state in own
        ]
    )
    name = f"{each}; cost_greedy {others[0]:.3f}, best rule {others[1]:.3f}; predicted / true {honest:.3f}"
    name += f"; of other placements: error {error:.2%}, rank correlation {ranks:.3f}"
    return _over_annealing(name, _costs(each, states), each)


def _over_annealing(name: str, costs: Costs, each: Set) -> Row:
    least = _annealed(each)
    gain = gain_over(costs, np.broadcast_to(least, costs.shape))
    interval = f"({1 - gain.high:.3f} to {1 - gain.low:.3f}, {len(costs)} seeds)" if gain.low is not None else ""
    return row(f"{name}; cost / annealing's {interval}", float(costs.mean() / least.mean()), "", BARS[each.size])


def _own(state: TrainingState) -> Place:
    return replace(make_placer(state), columns=False).place


def _costs(each: Set, states: Sequence[TrainingState]) -> Costs:
    return np.stack([_true_ms(each, _own(state)) for state in states])


def _true_ms(each: Set, place: Place) -> Costs:
    """`[T]` true costs; raises AssertionError if a placement is illegal."""
    placed = [(task, place(task)) for task in _tasks(each)]
    assert not any(violation(task, placement) for task, placement in placed), f"an illegal placement of {each}"
    return np.array([each.law.true_ms(task, placement) for task, placement in placed])


def _predictions(each: Set, states: Sequence[TrainingState]) -> tuple[float, float]:
    """Mean relative error and rank correlation within a task, of placements by the rules of thumb and at random."""
    placers = [baselines()[rule] for rule in RULES_OF_THUMB] + [RandomPlacer(seed) for seed in range(RANDOM_EACH)]
    placed = [(task, placer.place(task)) for task in _tasks(each) for placer in placers]
    true = np.array([each.law.true_ms(task, placement) for task, placement in placed])
    names = [task.name for task, _ in placed]
    predicted = [np.array([float(make_placer(state).predict(*at).overall_ms()) for at in placed]) for state in states]
    errors, ranks = zip(
        *((mean_relative_error(own, true), mean_rank_correlation(own, true, names)) for own in predicted), strict=True
    )
    return float(np.mean(errors)), float(np.mean(ranks))


@cache
def _tasks(each: Set) -> list[PlacementTask]:
    pool, count = pool_of(each.dims, "validation" if each.quick else "test"), 3 if each.quick else COUNTS[each.size]
    return tasks(pool, each.size, count, seed=200, memory=each.memory)


@cache
def _annealed(each: Set) -> Costs:
    return np.array([annealed_ms(each.law, task) for task in _tasks(each)])
