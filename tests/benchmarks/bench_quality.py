"""Quality of placements: true cost over that of long annealing, on tasks of unseen tables.

Trained at 50x4 only, from 100 placements and 30 all-to-alls of 4, 8 and 128 devices measured with noise on the simulated
testbed; placed within the default budget, which is counted in work, so that a busy machine finds the same placements.
Annealing keeps tables whole; the default placer may split some by columns, which a row's text then says, and separate rows
show the gain. Intervals are of 95 % over tasks and seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState
from tests.benchmarks.annealing import anneal, true_ms
from tests.benchmarks.gains import Costs, gain_over
from tests.benchmarks.measuring import Row, row, split_note, trained, trained_unseen
from tests.benchmarks.pools import ALL_DIMS, SIZES, TRAINED, Dims, Memory, Size, pools, tasks
from tests.helpers import unseen_testbed
from tests.helpers.policy_placer import PolicyPlacer
from tests.helpers.testbeds import simulated
from tests.helpers.trained import make_placer

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


@dataclass(frozen=True)
class Placed:
    """What placers of several seeds, or one placer, made of the same tasks.

    Attributes:
        costs: `[S, T]` true cost in ms.
        is_split: whether any placement splits tables by columns.
    """

    costs: Costs
    is_split: bool

    def over(self, reference: Costs) -> float:
        """Mean cost over the mean of `reference`, `[T]` or `[S, T]`."""
        return float(self.costs.mean() / reference.mean())

    def interval(self, reference: Costs) -> str:
        """The 95 % interval of that over tasks and seeds."""
        gain = gain_over(self.costs, np.broadcast_to(reference, self.costs.shape))
        if gain.low is None or gain.high is None:
            raise AssertionError(f"costs are not finite: {self.costs}, {reference}")
        seeds = "1 seed" if len(self.costs) == 1 else f"{len(self.costs)} seeds"
        return f"({1 - gain.high:.3f} to {1 - gain.low:.3f}, {seeds})"


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
            least = np.asarray(_unseen_annealed(dims, size, len(drawn)))
            ours = placed([_searching(trained_unseen(dims, seed)) for seed in seeds], drawn, unseen_testbed.true_ms)
            rules = [placed([baselines()[rule]], drawn, unseen_testbed.true_ms).over(least) for rule in RULES_OF_THUMB]
            name = (
                f"{size}, {dims}, unseen testbed{split_note(ours.is_split)}: cost / annealing's {ours.interval(least)}"
            )
            yield row(f"{name}; best rule of thumb {min(rules):.3f}", ours.over(least), "", BAR)


@cache
def _unseen_annealed(dims: Dims, size: Size, count: int) -> list[float]:
    return [unseen_testbed.annealed_ms(task, 6000) for task in tasks(pools(dims)[1], size, count, seed=200)]


def _columns(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Gain of splitting by columns over the same search on whole tables."""
    for size in (TRAINED, Size(100, 8), Size(50, 16)):
        each = Set("mixed", size, "generous", QUICK_COUNT)
        placers = [_searching(trained("mixed", seed)) for seed in seeds]
        split = _judge(placers, each)
        whole = _judge([replace(placer, columns=False) for placer in placers], each)
        name = f"{each}{split_note(split.is_split)}: cost / that of whole tables {split.interval(whole.costs)}"
        yield row(name, split.over(whole.costs), "", 1.0)


def _count(size: Size, quick: bool) -> int:
    return QUICK_COUNT if quick else COUNTS[str(size)]


def _judged(each: Set, seeds: Sequence[int]) -> Row:
    """Mean over the seeds, with the rules of thumb and the policy alone for comparison."""
    least = _annealed(each)
    by_rule = [_judge([baselines()[rule]], each).over(least) for rule in RULES_OF_THUMB]
    states = [trained(each.dims, seed) for seed in seeds]
    ours = _judge([_searching(state) for state in states], each)
    others: dict[str, Sequence[Placer]] = {
        "cost_greedy": [GreedyCostPlacer(state.cost_network, state.normaliser) for state in states],
        "policy": [PolicyPlacer(state) for state in states],
    }
    beside = "; ".join(f"{name} {_judge(placers, each).over(least):.3f}" for name, placers in others.items())
    name = f"{each}{split_note(ours.is_split)}: cost / annealing's {ours.interval(least)}"
    found = row(f"{name}; {beside}; best rule of thumb {min(by_rule):.3f}", ours.over(least), "", BAR)
    return {**found, "worse": ours.over(least) > min(by_rule)}


def _curve(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    each = Set("mixed", TRAINED, "generous", _count(TRAINED, quick))
    for measurements in CURVE:
        ours, least = (
            _judge([_searching(trained(each.dims, seed, measurements)) for seed in seeds], each),
            _annealed(each),
        )
        name = f"{each}{split_note(ours.is_split)}: cost / annealing's from {measurements} measurements"
        bar = BAR if measurements >= 100 else None
        yield row(f"{name} {ours.interval(least)}", ours.over(least), "", bar)


def _searching(state: TrainingState) -> DreamShardPlacer:
    return make_placer(state)


def placed(
    placers: Sequence[Placer], drawn: Sequence[PlacementTask], cost_ms: Callable[[PlacementTask, Placement], float]
) -> Placed:
    """Let each placer place all tasks.

    Raises:
        AssertionError: a placement is illegal.
    """
    costs, is_split = [], False
    for placer in placers:
        placements = [placer.place(task) for task in drawn]
        for task, placement in zip(drawn, placements, strict=True):
            if violation(task, placement):
                raise AssertionError(f"{placer.name} placed {task.name} illegally")
            is_split |= len(placement.device) > len(task.tables)
        costs.append([cost_ms(task, placement) for task, placement in zip(drawn, placements, strict=True)])
    return Placed(np.asarray(costs), is_split)


def _judge(placers: Sequence[Placer], each: Set) -> Placed:
    return placed(placers, _tasks(each), partial(true_ms, EXACT))


@cache
def _tasks(each: Set) -> list[PlacementTask]:
    return tasks(pools(each.dims)[1], each.size, each.count, seed=200, memory=each.memory)


@cache
def _annealed(each: Set) -> Costs:
    return np.asarray([anneal(EXACT, task, steps=ANNEALING_STEPS).overall_ms for task in _tasks(each)])
