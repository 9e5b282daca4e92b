"""Whether a bootstrap network tells a search's good placements from those that exploit its network's errors.

It reads what the benchmark `kernels` measured on two CPU ranks, where measuring again differs by 13.2 %; it measures nothing.
Each of three trainings has 100 measurements. Its network's own search and greedy placements were measured on 100 held-out
tasks. A bootstrap network is fitted to the 100 as a training fits it, and chooses one of the two. Which measurements each
member sees changes the costs too, so they are means over four orders of the measurements. The placer's rule was decided on
measurements of another split of the tables.
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
from dreamshard.bootstrap import votes_ms
from dreamshard.cost_model import CostData
from dreamshard.costs import CostSample
from dreamshard.sweep.summary import gain_over
from dreamshard.tables import Tables
from dreamshard.task_sampling import split_tables
from tests.benchmarks.bench_kernels import (
    LEARNED,
    PER_TASK,
    RANDOM_EACH,
    SPLIT_SEED,
    TEST_SEED,
    TEST_TASKS,
    TRAIN_SEED,
    TRAIN_TASKS,
    order_of,
    tasks_of,
    workload,
)
from tests.benchmarks.held_out import Vector, by_network
from tests.benchmarks.measuring import Row, row
from tests.benchmarks.recorded_testbed import recorded_samples

MEASUREMENTS = Path(__file__).parent / "data" / "kernels_amd_epyc.jsonl.gz"
SEEDS, BUDGET, DRAWS = (0, 1, 2), 100, 4
CHOSEN_FROM = ("dreamshard_without_bootstraps", "cost_greedy")


def _by_mean(search: Vector, greedy: Vector) -> Vector:
    return np.asarray(search.mean(axis=0) < greedy.mean(axis=0))


def _by_worst(search: Vector, greedy: Vector) -> Vector:
    return np.asarray(search.max(axis=0) < greedy.max(axis=0))


def _by_all(search: Vector, greedy: Vector) -> Vector:
    return np.asarray((search < greedy).all(axis=0))


Rule = Callable[[Vector, Vector], Vector]
"""`[T]` whether to take the search's placement, by what votes predict of it and of the greedy one, `[V, T]` each."""

RULES: dict[str, Rule] = {
    "the mean of its votes": _by_mean,
    "the worst of its votes": _by_worst,
    "all its votes, as the placer does": _by_all,
}


def rows() -> Iterator[Row]:
    """Costs over those of the best rule of thumb, with intervals over tasks and seeds."""
    with tempfile.TemporaryDirectory() as folder:
        pool, _ = workload(Path(folder))
    learning, unseen = split_tables(pool, torch.Generator().manual_seed(SPLIT_SEED))
    held_out = tasks_of(unseen, TEST_TASKS, TEST_SEED, "unseen")
    tasks = [*tasks_of(learning, TRAIN_TASKS, TRAIN_SEED, "train"), *held_out]
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
        orders = np.random.default_rng(seed)
        drawn = [[own[i] for i in orders.permutation(BUDGET)] for _ in range(DRAWS)]
        fits = [_fitted(learning, each, 1000 + 100 * seed + number) for number, each in enumerate(drawn)]
        more = [by_network(each, placed).overall.reshape(1, len(CHOSEN_FROM), TEST_TASKS) for each in fits]
        votes = [_by_votes(each, placed) for each in fits]  # [V, 2, T] each
        for rule, choose, predicted in (
            ("one more network", _by_mean, more),
            *((f"a bootstrap network, by {rule}", choose, votes) for rule, choose in RULES.items()),
        ):
            chosen = [np.where(choose(each[:, 0], each[:, 1]), *costs) for each in predicted]  # [T] each
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


@torch.no_grad()
def _by_votes(state: training.TrainingState, placed: Sequence[CostSample]) -> Vector:
    """`[V, 2, T]` milliseconds of the placements to choose from, by each vote of the bootstrap network."""
    assert state.bootstrap is not None
    network = state.bootstrap.network
    sums = CostData.of(placed, state.normaliser).sums(network.encode)
    return votes_ms(network, sums).T.numpy().reshape(-1, len(CHOSEN_FROM), TEST_TASKS)


def _fitted(pool: Tables, samples: Sequence[CostSample], seed: int) -> training.TrainingState:
    """Cost and bootstrap networks fitted to these samples, by as many steps as a training takes."""
    state = training.start_training(pool, TrainingConfig(), seed)
    for iteration in range(state.config.iterations):
        state.iteration = iteration
        training.fit_costs(state, samples)
    return state


def _costs(measured: Mapping[int, Sequence[CostSample]], place: int) -> Vector:
    """`[T]` milliseconds of each task's placement in this place; the mean where it was measured twice."""
    numbers = range(place, TEST_TASKS * PER_TASK, PER_TASK)
    return np.asarray([np.mean([sample.overall_ms for sample in measured[number]]) for number in numbers])
