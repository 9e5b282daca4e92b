"""Whether networks of resampled measurements tell a search's good placements from those that exploit its network's errors.

It reads what the benchmark `kernels` measured on two CPU ranks, where measuring again differs by 11.5 %; it measures nothing.
Each of three trainings has 100 measurements. Its network's own search and greedy placements were measured on 50 held-out
tasks. Five more networks are fitted to as many measurements, drawn from the same 100 with repetition, and choose one of the
two. Which networks and which rule choose was tried on these very tasks.
"""

import gzip
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
SEEDS, BUDGET, NETWORKS = (0, 1, 2), 100, 5
CHOSEN_FROM = ("dreamshard", "cost_greedy")


def _mean(predicted: Vector) -> Vector:
    return np.asarray(predicted.mean(axis=0))


def _worst(predicted: Vector) -> Vector:
    return np.asarray(predicted.max(axis=0))


RESAMPLED = {f"the mean of {NETWORKS} resampled": _mean, f"the worst of {NETWORKS} resampled": _worst}


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
        for ways, drawn in (({"one more network": _mean}, [own]), (RESAMPLED, _resampled(own, seed))):
            networks = [_fitted(learning, each, 1000 + 10 * seed + number) for number, each in enumerate(drawn)]
            predicted = np.stack([by_network(network, placed).overall for network in networks])  # [N, 2 T]
            for way, together in ways.items():
                choice = together(predicted).reshape(len(at), TEST_TASKS).argmin(axis=0)
                name = f"{' or '.join(at)}, chosen by {way}"
                found.setdefault(name, []).append(costs[choice, np.arange(TEST_TASKS)])
    for name, of_seeds in found.items():
        gain = gain_over(np.stack(of_seeds), reference)
        if gain.mean is not None and gain.low is not None and gain.high is not None:  # no measured cost is infinite
            interval = f"({1 - gain.high:.3f}-{1 - gain.low:.3f})"
            yield row(f"{name}: cost / that of the best rule, {best} {interval}", 1 - gain.mean, "", 1.0)


def _resampled(samples: Sequence[CostSample], seed: int) -> list[list[CostSample]]:
    generator = np.random.default_rng(seed)
    return [[samples[i] for i in generator.integers(len(samples), size=len(samples))] for _ in range(NETWORKS)]


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
