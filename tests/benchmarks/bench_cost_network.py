"""How well the cost networks predict unseen tasks after Algorithm 1 has measured 100 placements at 50x4.

The held-out tasks consist of unseen tables, placed by the rules of thumb and at random, measured with the testbed's noise.
Each learns as its algorithm does.
"""

from collections.abc import Iterator

import torch

from dreamshard.cost_model import CostData, mean_relative_error
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.training.config import Algorithm
from tests.benchmarks.measuring import Row, rank, row, spread, trained
from tests.benchmarks.pools import ALL_DIMS, SIZES, TRAINED, Dims, Size, pools, tasks
from tests.helpers.testbeds import simulated

MAPE_BAR, SPEARMAN_BAR = 5.0, 0.95
NUM_TASKS, RANDOM_EACH = 6, 6


def rows(quick: bool = False) -> Iterator[Row]:
    """The structured network at every size and the paper's at the size trained on: means and ranges over the seeds."""
    seeds = (0,) if quick else (0, 1, 2)
    cases: list[tuple[Algorithm, Size]] = [("dreamshard", size) for size in SIZES] + [("paper", TRAINED)]
    for dims in ALL_DIMS:
        for algorithm, size in cases:
            errors = [_error(algorithm, dims, size, seed) for seed in seeds]
            yield from _figures(f"{algorithm}, {dims}, {size}", errors)


def _figures(name: str, errors: list[tuple[float, float]]) -> Iterator[Row]:
    mape, rank = [100 * error for error, _ in errors], [each for _, each in errors]
    mean_mape, mean_rank = sum(mape) / len(mape), sum(rank) / len(rank)
    yield row(f"{name}: held-out error {spread(mape, 1, '%')}", mean_mape, "%", MAPE_BAR)
    rank_name = f"{name}: rank correlation within a task {spread(rank, 1, '')}"
    yield row(rank_name, mean_rank, "", SPEARMAN_BAR, more_is_better=True)


def _error(algorithm: Algorithm, dims: Dims, size: Size, seed: int) -> tuple[float, float]:
    """Mean relative error, and mean rank correlation within a task."""
    state, testbed = trained(dims, seed, algorithm=algorithm), simulated()
    samples = [
        testbed.measure(task, placer.place(task))
        for task in tasks(pools(dims)[1], size, NUM_TASKS, seed=100)
        for placer in [
            *(baselines()[rule] for rule in RULES_OF_THUMB),
            *(RandomPlacer(draw) for draw in range(RANDOM_EACH)),
        ]
    ]
    with torch.no_grad():
        predicted, measured = state.cost_network.predicted(CostData.of(samples, state.normaliser))
    names = [sample.task.name for sample in samples]
    return mean_relative_error(predicted, measured), rank(predicted.numpy(), measured.numpy(), names)
