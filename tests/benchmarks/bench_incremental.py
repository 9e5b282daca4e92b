"""Warm starts from the champion when tables change: how many measurements they save, and what they cost in quality.

A champion is trained on half of the 2021 data set. Then every twentieth table is removed, replaced by a new one, resized or
looked up differently, and one placer is trained from scratch and one from the champion; tables stay on their side of the
split. All three are judged by the true cost of the same held-out tasks of the changed data set.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from dreamshard.costs import CostSample
from dreamshard.tables import NUM_BINS, Tables, concatenate
from dreamshard.task_sets.sampling import EMPTY_SPLIT, split_tables
from dreamshard.training import TrainingConfig, TrainingState
from tests.benchmarks.annealing import true_ms
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, meta_tables, tasks
from tests.helpers.testbeds import simulated
from tests.helpers.trained import continue_from, fit_costs, improve_policy, make_placer, propose, start_training

CHANGED = 0.05
HELD_OUT = 20
EXACT = simulated(noise=0.0)


@dataclass(frozen=True)
class Trained:
    """A training run by this benchmark.

    Attributes:
        samples: that it measured.
        cpu_s: CPU seconds of learning, without measuring, which costs nothing on the simulated testbed.
    """

    state: TrainingState
    samples: tuple[CostSample, ...]
    cpu_s: float


def rows(quick: bool = False) -> Iterator[Row]:
    """Means over the seeds, for both kinds of dims."""
    seeds = (0,) if quick else (0, 1, 2)
    for dims in ALL_DIMS:
        yield from _compared(dims, seeds, CHANGED)
    yield from _compared("mixed", seeds, 0.3)


def _compared(dims: Dims, seeds: Sequence[int], share: float) -> Iterator[Row]:
    name = f"{TRAINED}, {dims}, {share:.0%} of the tables changed"
    full, warm, stale, again = ([_costs(each, dims, share, seed) for seed in seeds] for each in RUNS)
    yield {"name": f"{name}: held-out cost, trained in full", "value": float(np.mean(full)), "unit": "ms"}
    for said, costs in (
        ("trained incrementally / in full", warm),
        ("the champion as it was / in full", stale),
        ("in full with another seed / in full", again),
    ):
        ratios = [float(np.mean(ours / theirs)) for ours, theirs in zip(costs, full, strict=True)]
        yield row(f"{name}: cost, {said} {spread(ratios, 1, '')}", float(np.mean(ratios)), "", 1.0)
    runs = [(incrementally(dims, share, seed), in_full(dims, share, seed)) for seed in seeds]
    made, without = (float(np.mean([len(each[i].samples) for each in runs])) for i in range(2))
    yield row(f"{name}: measurements made, incrementally and in full", made, "", None, without)
    ours, theirs = ([each[i].cpu_s for each in runs] for i in range(2))
    yield row(f"{name}: learning, CPU {spread(ours, 1, 's')}", float(np.mean(ours)), "s", None, float(np.mean(theirs)))


def _costs(run: Callable[[Dims, float, int], Trained], dims: Dims, share: float, seed: int) -> npt.NDArray[np.float64]:
    """True cost of each held-out task as placed by the placer of a run."""
    held_out = tasks(changed_split(dims, share, seed)[1], TRAINED, HELD_OUT, seed=300 + seed)
    placer = make_placer(run(dims, share, seed).state)
    return np.asarray([true_ms(EXACT, task, placer.place(task)) for task in held_out])


@cache
def champion(dims: Dims, seed: int) -> Trained:
    """Train on the data set before the change."""
    train, _ = split_tables(meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(seed))
    return _trained(start_training(train, TrainingConfig(), seed), train, seed)


@cache
def in_full(dims: Dims, share: float, seed: int) -> Trained:
    """Train from scratch on the changed data set."""
    train, _ = changed_split(dims, share, seed)
    return _trained(start_training(train, TrainingConfig(), seed), train, seed)


@cache
def in_full_again(dims: Dims, share: float, seed: int) -> Trained:
    """Train from scratch with another seed, which shows how much two such trainings differ."""
    train, _ = changed_split(dims, share, seed)
    return _trained(start_training(train, TrainingConfig(), seed + 10), train, seed + 10)


@cache
def incrementally(dims: Dims, share: float, seed: int) -> Trained:
    """Train from the champion and its samples."""
    before = champion(dims, seed)
    train, _ = changed_split(dims, share, seed)
    state = continue_from(make_placer(before.state), TrainingConfig().warm(), seed)
    return _trained(state, train, seed, before.samples)


def untouched(dims: Dims, share: float, seed: int) -> Trained:
    """The unchanged champion."""
    return champion(dims, seed)


@cache
def changed_split(dims: Dims, share: float, seed: int) -> tuple[Tables, Tables]:
    """The split of the changed data set; every table stays on its side."""
    pool, generator = meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(seed)
    earlier = EMPTY_SPLIT.with_tables(*split_tables(pool, generator))
    return split_tables(changed(pool, meta_tables("meta-dlrm-2022", dims), share, generator), generator, earlier)


def changed(pool: Tables, others: Tables, share: float, generator: torch.Generator) -> Tables:
    """Change `share` of the tables: remove, add from `others`, resize and look up differently a quarter each."""
    order = torch.randperm(len(pool), generator=generator)
    removed, resized, drifted, _ = order[: round(share * len(pool))].tensor_split(4)
    rows, pooling, bins = pool.rows.clone(), pool.pooling_factor.clone(), pool.bins.clone()
    lookups, unique = pool.lookups.clone(), pool.unique_rows.clone()
    rows[resized] = (rows[resized] * 2).clamp(max=2**31 - 1)
    for t in drifted.tolist():  # twice as many lookups of the same rows: every row moves one bin up
        pooling[t], lookups[t] = 2 * pooling[t], 2 * lookups[t]
        bins[t] = torch.cat([torch.zeros(1), bins[t, : NUM_BINS - 2], bins[t, NUM_BINS - 2 :].sum()[None]])
    kept = order[len(removed) :].sort().values
    same = replace(pool, rows=rows, pooling_factor=pooling, bins=bins, lookups=lookups, unique_rows=unique).select(kept)
    new = others.select(torch.randperm(len(others), generator=generator)[: len(removed)])
    return concatenate([same, new])


def _trained(state: TrainingState, pool: Tables, seed: int, earlier: Sequence[CostSample] = ()) -> Trained:
    drawn, testbed = tasks(pool, TRAINED, 50, seed=5 + seed), simulated()
    samples: list[CostSample] = []
    began = time.process_time()
    for _ in range(state.config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, drawn)]
        fit_costs(state, [*earlier, *samples])
        improve_policy(state, drawn)
    return Trained(state, tuple(samples), time.process_time() - began)


RUNS = (in_full, incrementally, untouched, in_full_again)
