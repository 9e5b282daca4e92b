"""Quality of placements: true cost over that of long annealing, on tasks of unseen tables.

Trained at 50x4 only, from 100 placements and 30 all-to-alls of 4, 8 and 128 devices measured with noise on the simulated
testbed; placed within the default budget, which is counted in work, so that a busy machine finds the same placements.
Annealing keeps tables whole; the default placer may split some by columns, and separate rows show the gain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dreamshard.baselines import RULES_OF_THUMB, baselines
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState, make_placer
from tests.benchmarks.annealing import anneal, true_ms
from tests.benchmarks.measuring import Row, row, spread, trained, trained_unseen
from tests.benchmarks.pools import ALL_DIMS, SIZES, TRAINED, Dims, Memory, Size, pools, tasks
from tests.helpers import unseen_testbed
from tests.helpers.policy_placer import PolicyPlacer
from tests.helpers.testbeds import simulated

BAR = 1.02
COUNTS = {"20x4": 10, "50x4": 10, "100x8": 6, "200x8": 5, "800x128": 3}
QUICK_COUNT = 3
ANNEALING_STEPS = 2000
CURVE = (10, 30, 100, 300)
EXACT = simulated(noise=0.0)


@dataclass(frozen=True)
class Set:
    """Tasks judged together."""

    dims: Dims
    size: Size
    memory: Memory
    count: int

    def __str__(self) -> str:
        return f"{self.size}, {self.dims}" + (", tight memory" if self.memory == "tight" else "")


def rows(quick: bool = False) -> Iterator[Row]:
    """All sets of tasks, then quality by number of measurements."""
    seeds = (0,) if quick else (0, 1, 2)
    sets = [Set(dims, size, "generous", _count(size, quick)) for dims in ALL_DIMS for size in SIZES]
    sets.append(Set("mixed", TRAINED, "tight", _count(TRAINED, quick)))
    worse = 0
    for each in sets:
        found = _judged(each, seeds)
        worse += found.pop("worse")
        yield found
    yield {
        "name": "sets on which dreamshard is worse than the best rule of thumb",
        "value": worse,
        "unit": "",
        "bar": 0,
    }
    yield from _curve(seeds, quick)
    yield from _unseen(seeds, quick)
    yield from _columns(seeds, quick)


def _unseen(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Quality on a testbed whose laws the project does not know (`tests/helpers/unseen_testbed.py`)."""
    for dims in ALL_DIMS:
        for size in (Size(20, 4), TRAINED, Size(100, 8)):
            drawn = tasks(pools(dims)[1], size, _count(size, quick), seed=200)
            least = sum(_unseen_annealed(dims, size, len(drawn)))
            ours = [
                sum(unseen_testbed.true_ms(task, _searching(trained_unseen(dims, seed)).place(task)) for task in drawn)
                / least
                for seed in seeds
            ]
            rules = [
                sum(unseen_testbed.true_ms(t, baselines()[rule].place(t)) for t in drawn) for rule in RULES_OF_THUMB
            ]
            name = f"{size}, {dims}, unseen testbed: cost / annealing's {spread(ours, 1, '')}"
            yield row(f"{name}; best rule of thumb {min(rules) / least:.3f}", _mean(ours), "", BAR)


@cache
def _unseen_annealed(dims: Dims, size: Size, count: int) -> list[float]:
    return [unseen_testbed.annealed_ms(task, 6000) for task in tasks(pools(dims)[1], size, count, seed=200)]


def _columns(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Gain of splitting by columns over the same search on whole tables."""
    for size in (TRAINED, Size(100, 8), Size(50, 16)):
        each = Set("mixed", size, "generous", QUICK_COUNT)
        states = [trained("mixed", seed) for seed in seeds]
        gains = []
        for state in states:
            split = _searching(state)
            whole = replace(split, columns=False)
            costs = [[true_ms(EXACT, t, placer.place(t)) for t in _tasks(each)] for placer in (split, whole)]
            gains.append(sum(costs[0]) / sum(costs[1]))
        yield row(f"{each}: cost with column shards / whole tables {spread(gains, 1, '')}", _mean(gains), "", 1.0)


def _count(size: Size, quick: bool) -> int:
    return QUICK_COUNT if quick else COUNTS[str(size)]


def _judged(each: Set, seeds: Sequence[int]) -> Row:
    """Mean over the seeds, with the rules of thumb and the policy alone for comparison."""
    by_rule = [_over_annealing(baselines()[rule], each) for rule in RULES_OF_THUMB]
    states = [trained(each.dims, seed) for seed in seeds]
    ours = [_over_annealing(_searching(state), each) for state in states]
    greedy = [GreedyCostPlacer(state.cost_network, state.normaliser) for state in states]
    others = {
        "cost_greedy": [_over_annealing(placer, each) for placer in greedy],
        "policy": [_over_annealing(PolicyPlacer(state), each) for state in states],
    }
    beside = "; ".join(f"{name} {_mean(values):.3f}" for name, values in others.items())
    name = f"{each}: cost / annealing's {spread(ours, 1, '')}; {beside}; best rule of thumb {min(by_rule):.3f}"
    found = row(name, _mean(ours), "", BAR)
    return {**found, "worse": _mean(ours) > min(by_rule)}


def _curve(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    each = Set("mixed", TRAINED, "generous", _count(TRAINED, quick))
    for measurements in CURVE:
        states = [trained(each.dims, seed, measurements) for seed in seeds]
        ours = [_over_annealing(_searching(state), each) for state in states]
        name = f"{each}: cost / annealing's from {measurements} measurements {spread(ours, 1, '')}"
        yield row(name, _mean(ours), "", BAR if measurements >= 100 else None)


def _searching(state: TrainingState) -> DreamShardPlacer:
    return make_placer(state)


def _over_annealing(placer: Placer, each: Set) -> float:
    """Mean true cost over the mean of annealing's."""
    total = 0.0
    for task in _tasks(each):
        placement = placer.place(task)
        if not task.is_legal(placement):
            raise AssertionError(f"{placer.name} placed {task.name} illegally")
        total += true_ms(EXACT, task, placement)
    return total / sum(_annealed(each))


@cache
def _tasks(each: Set) -> list[PlacementTask]:
    return tasks(pools(each.dims)[1], each.size, each.count, seed=200, memory=each.memory)


@cache
def _annealed(each: Set) -> list[float]:
    return [anneal(EXACT, task, steps=ANNEALING_STEPS).overall_ms for task in _tasks(each)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
