"""Quality of placements and predictions on unseen tables: true cost over that of long annealing, by four laws.

Trained at 50x4 only, from 100 placements and all-to-alls of 4, 8 and 128 devices, measured with noise; placed within the
default budget. All tables stay whole, as in annealing. A row also has the greedy placement on the same network, the best
heuristic, predicted over true cost of dreamshard's own placements, and how well the network predicts placements by
heuristics and at random. Intervals are of 95 % over tasks and seeds. `--quick` uses one seed and tasks of validation tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy

from dreamshard.cost_model import mean_relative_error
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.search.packing import HEURISTICS, RandomPlacer, baselines
from dreamshard.tasks import PlacementTask
from tests.benchmarks.annealing import annealed_ms
from tests.benchmarks.measuring import ALL_DIMS, TRAINED, Dims, Row, Size, relative, tasks, trained, true_ms
from tests.helpers.laws import LAWS, SIMULATED, Law
from tests.helpers.trained import make_placer

COUNTS = {Size(20, 4): 10, TRAINED: 10, Size(100, 8): 8, Size(200, 8): 5}
BARS = {Size(20, 4): 1.015, TRAINED: 1.01, Size(100, 8): 1.015, Size(200, 8): 1.01}
RANDOM_EACH = 6


@dataclass(frozen=True)
class Set:
    """Tasks judged together."""

    law: Law
    dims: Dims
    size: Size
    quick: bool
    is_tight: bool = False

    def __str__(self) -> str:
        return f"{self.law.name}, {self.size}, {self.dims}" + ", tight memory" * self.is_tight


def rows(quick: bool = False) -> Iterator[Row]:
    """All sets of tasks."""
    sets = [Set(law, dims, size, quick) for law in LAWS for dims in ALL_DIMS for size in COUNTS]
    for case in [*sets, Set(SIMULATED, "mixed", TRAINED, quick, is_tight=True)]:
        yield _judged(case)


def _judged(case: Set) -> Row:
    law, drawn, seeds = case.law, _tasks(case), range(1 if case.quick else 3)
    placers = [make_placer(trained(case.dims, seed, law=law)) for seed in seeds]
    least, (error, ranks) = np.array([annealed_ms(law, task) for task in drawn]), _predictions(case, placers)
    whole = [replace(placer, columns=False) for placer in placers]
    costs = np.stack([true_ms(law, drawn, placer.place) for placer in whole])
    predicted = [[float(placer.predict(task, placer.place(task)).overall_ms()) for task in drawn] for placer in whole]
    greedy = [true_ms(law, drawn, GreedyCostPlacer(whole.cost_network, whole.normaliser).place) for whole in placers]
    heuristic = min(true_ms(law, drawn, baselines()[name].place).mean() for name in HEURISTICS)
    name = f"{case}; cost_greedy {np.mean(greedy) / least.mean():.3f}, best heuristic {heuristic / least.mean():.3f}; "
    name += f"predicted / true {np.mean(predicted / costs):.3f}; of other placements: error {error:.2%}, "
    name += f"rank correlation {ranks:.3f}; cost / annealing's"
    return relative(name, costs, np.broadcast_to(least, costs.shape), BARS[case.size])


def _predictions(case: Set, placers: Sequence[DreamShardPlacer]) -> tuple[float, float]:
    """Mean relative error and rank correlation within a task, of placements by the heuristics and at random."""
    others = [baselines()[heuristic] for heuristic in HEURISTICS] + [RandomPlacer(seed) for seed in range(RANDOM_EACH)]
    placed = [(task, other.place(task)) for task in _tasks(case) for other in others]
    true = np.array([case.law.true_ms(*at) for at in placed])
    predicted = [np.array([float(placer.predict(*at).overall_ms()) for at in placed]) for placer in placers]
    errors = [mean_relative_error(costs, true) for costs in predicted]
    of_tasks = [np.split(costs, len(_tasks(case))) for costs in (true, *predicted)]  # as many placements of each
    ranks = [
        scipy.stats.spearmanr(*pair).statistic for of in of_tasks[1:] for pair in zip(of, of_tasks[0], strict=True)
    ]
    return float(np.mean(errors)), float(np.mean(ranks))


@cache
def _tasks(case: Set) -> list[PlacementTask]:
    split, count = ("validation", 3) if case.quick else ("test", COUNTS[case.size])
    return tasks(case.dims, split, case.size, count, seed=200, memory="tight" if case.is_tight else "generous")
