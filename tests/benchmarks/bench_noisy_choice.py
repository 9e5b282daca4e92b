"""Whether networks of resampled measurements tell a search's good placements from those that exploit its network's errors.

It reads what the benchmark `kernels` measured on two CPU ranks, where measuring again differs by 11.5 %; it measures nothing.
Each of three trainings has 100 measurements. Its network's own search and greedy placements were measured on 50 held-out
tasks. Five more networks are fitted to as many measurements, drawn from the same 100 with repetition, and choose one of the
two. Which five are drawn changes the costs too, so they are means over four draws of five. Which rule chooses was
tried on these very tasks.
"""

import gzip
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dreamshard import training
from dreamshard.algorithms import TrainingConfig
from dreamshard.baselines import RULES_OF_THUMB
from dreamshard.costs import CostSample
from dreamshard.sweep.summary import gain_over
from dreamshard.tables import Tables
from dreamshard.tasks import split_tables
from tests.benchmarks.bench_kernels import (
    LEARNED,
    PER_TASK,
    RANDOM_EACH,
    TEST_TASKS,
    TRAIN_TASKS,
    order_of,
    tasks_of,
    workload,
)
from tests.benchmarks.held_out import Vector, by_network
from tests.benchmarks.measuring import Row, row
from tests.benchmarks.recorded_testbed import recorded_samples

MEASUREMENTS = Path(__file__).parent / "data" / "kernels_amd_epyc.jsonl.gz"
SEEDS, BUDGET, NETWORKS, DRAWS = (0, 1, 2), 100, 5, 4
CHOSEN_FROM = ("dreamshard", "cost_greedy")


def _by_mean(search: Vector, greedy: Vector) -> Vector:
    return np.asarray(search.mean(axis=0) < greedy.mean(axis=0))


def _by_worst(search: Vector, greedy: Vector) -> Vector:
    return np.asarray(search.max(axis=0) < greedy.max(axis=0))


def _by_all(search: Vector, greedy: Vector) -> Vector:
    return np.asarray((search < greedy).all(axis=0))


Rule = Callable[[Vector, Vector], Vector]
"""`[T]` whether to take the search's placement, by what networks predict of it and of the greedy one, `[N, T]` each."""

RESAMPLED: dict[str, Rule] = {
    f"the mean of {NETWORKS} resampled": _by_mean,
    f"the worst of {NETWORKS} resampled": _by_worst,
    f"{NETWORKS} resampled, the search's only if all agree": _by_all,
}


def rows() -> Iterator[Row]:
    """Costs over those of the best rule of thumb, with intervals over tasks and seeds."""
    with tempfile.TemporaryDirectory() as folder:
        pool, _ = workload(Path(folder))
    learning, unseen = split_tables(pool, torch.Generator().manual_seed(0))
    tasks = [*tasks_of(learning, TRAIN_TASKS, 5, "train"), *(held_out := tasks_of(unseen, TEST_TASKS, 200, "unseen"))]
    samples = recorded_samples(gzip.decompress(MEASUREMENTS.read_bytes()).decode().splitlines(), tasks)
    judged = samples[len(SEEDS) * BUDGET :]
    measured: dict[int, list[CostSample]] = {}
    for number, sample in zip(order_of(TEST_TASKS * PER_TASK), judged, strict=True):
        assert sample.task.name == held_out[number // PER_TASK].name
        measured.setdefault(number, []).append(sample)
    places = {name: place for place, name in enumerate(RULES_OF_THUMB)}
    rules = {name: _costs(measured, place) for name, place in places.items()}  # [T]
    best = min(rules, key=lambda name: float(rules[name].mean()))
    reference = np.tile(rules[best], (len(SEEDS), 1))  # [S, T]
    found: dict[str, list[Vector]] = {}
    for seed in SEEDS:
        own = samples[seed * BUDGET : (seed + 1) * BUDGET]
        first = len(RULES_OF_THUMB) + RANDOM_EACH + seed * len(LEARNED)
        at = {name: first + LEARNED.index(name) for name in CHOSEN_FROM}
        costs = np.stack([_costs(measured, place) for place in at.values()])  # [2, T]
        for name, of_placer in zip(at, costs, strict=True):
            found.setdefault(name, []).append(of_placer)
        placed = [measured[task * PER_TASK + place][0] for place in at.values() for task in range(TEST_TASKS)]
        one_more, *resampled = (
            _predicted(learning, drawn, 1000 + 100 * seed + number, placed)
            for number, drawn in enumerate([own, *_resampled(own, seed)])
        )  # [2, T] each
        for rule, choose, draws in (
            ("one more network", _by_mean, [np.stack([one_more])]),
            *((rule, choose, np.split(np.stack(resampled), DRAWS)) for rule, choose in RESAMPLED.items()),
        ):
            chosen = [np.where(choose(each[:, 0], each[:, 1]), *costs) for each in draws]  # [T] each
            found.setdefault(f"{' or '.join(at)}, chosen by {rule}", []).append(np.mean(chosen, axis=0))
    for name, of_seeds in found.items():
        yield _over(f"{name}: cost / that of the best rule, {best}", of_seeds, reference)
        if name != "cost_greedy":
            yield _over(f"{name}: cost / that of cost_greedy", of_seeds, np.stack(found["cost_greedy"]))


def _over(name: str, of_seeds: Sequence[Vector], reference: Vector) -> Row:
    gain = gain_over(np.stack(of_seeds), reference)
    if gain.mean is None or gain.low is None or gain.high is None:
        raise ValueError("a measured cost is infinite, so costs have no ratio; look for a broken measurement")
    return row(f"{name} ({1 - gain.high:.3f}-{1 - gain.low:.3f})", 1 - gain.mean, "", 1.0)


def _predicted(pool: Tables, samples: Sequence[CostSample], seed: int, placed: Sequence[CostSample]) -> Vector:
    """`[2, T]` milliseconds of the placements to choose from, by a network fitted to the samples."""
    return by_network(_fitted(pool, samples, seed), placed).overall.reshape(len(CHOSEN_FROM), TEST_TASKS)


def _resampled(samples: Sequence[CostSample], seed: int) -> list[list[CostSample]]:
    generator = np.random.default_rng(seed)
    return [[samples[i] for i in generator.integers(len(samples), size=len(samples))] for _ in range(NETWORKS * DRAWS)]


def _fitted(pool: Tables, samples: Sequence[CostSample], seed: int) -> training.TrainingState:
    """A cost network fitted to these samples, by as many steps as a training takes."""
    state = training.start_training(pool, TrainingConfig(), seed)
    for iteration in range(state.config.iterations):
        state.iteration = iteration
        training.fit_costs(state, samples)
    return state


def _costs(measured: Mapping[int, Sequence[CostSample]], place: int) -> Vector:
    """`[T]` milliseconds of each task's placement in this place; the mean where it was measured twice."""
    numbers = range(place, TEST_TASKS * PER_TASK, PER_TASK)
    return np.asarray([np.mean([sample.overall_ms for sample in measured[number]]) for number in numbers])
