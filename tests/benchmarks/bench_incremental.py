"""Warm starts from the champion when tables change: measurements saved, and what they cost in quality.

A champion is trained on half of the 2021 data set. Then every twentieth table is removed, replaced by a new one, resized or
looked up differently, and one placer is trained from scratch and one from the champion; tables stay on their side of the
split. All are judged by the true cost of the same held-out tasks of the changed data set.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from dreamshard.tables import NUM_BINS, Tables, concatenate
from dreamshard.training import TrainingConfig
from dreamshard.workloads.task_sampling import EMPTY_SPLIT, split_tables
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, meta_tables, tasks
from tests.helpers.laws import SIMULATED
from tests.helpers.testbeds import simulated
from tests.helpers.trained import Learned, learn, make_placer

HELD_OUT = 20
OTHERS = ("trained incrementally", "the champion as it was", "in full with another seed")


def rows(quick: bool = False) -> Iterator[Row]:
    """Means over the seeds, for both kinds of dims."""
    seeds = (0,) if quick else (0, 1, 2)
    for dims in ALL_DIMS:
        yield from _compared(dims, seeds, 0.05)
    yield from _compared("mixed", seeds, 0.3)


def _compared(dims: Dims, seeds: Sequence[int], share: float) -> Iterator[Row]:
    name = f"{TRAINED}, {dims}, {share:.0%} of the tables changed"
    runs = [_runs(dims, share, seed) for seed in seeds]
    costs = np.stack([_costs(each, dims, share, seed) for each, seed in zip(runs, seeds, strict=True)])  # [S, 4, T]
    yield {"name": f"{name}: held-out cost, trained in full", "value": float(costs[:, 0].mean()), "unit": "ms"}
    for said, ratios in zip(OTHERS, (costs[:, 1:] / costs[:, :1]).mean(axis=-1).T, strict=True):
        yield row(f"{name}: cost, {said} / in full {spread(ratios, 1, '')}", float(ratios.mean()), "", 1.0)
    full, warm = ([each[run] for each in runs] for run in range(2))
    made, without = (float(np.mean([len(each.samples) for each in some])) for some in (warm, full))
    yield row(f"{name}: measurements made, incrementally and in full", made, "", None, without)
    ours, theirs = ([each.cpu_s for each in some] for some in (warm, full))
    yield row(f"{name}: learning, CPU {spread(ours, 1, 's')}", float(np.mean(ours)), "s", None, float(np.mean(theirs)))


def _runs(dims: Dims, share: float, seed: int) -> list[Learned]:
    """Trained in full on the changed data set, from the champion, the champion, and in full with another seed."""
    before, _ = split_tables(meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(seed))
    champion, (train, _) = _learned(before, seed), changed_split(dims, share, seed)
    warm = {"base": make_placer(champion.state), "earlier": champion.samples}
    return [
        _learned(train, seed),
        learn(train, tasks(train, TRAINED, 50, seed=5 + seed), TrainingConfig().warm(), seed, simulated(), **warm),
        champion,
        _learned(train, seed + 10),
    ]


def _learned(pool: Tables, seed: int) -> Learned:
    return learn(pool, tasks(pool, TRAINED, 50, seed=5 + seed), TrainingConfig(), seed, simulated())


def _costs(runs: Sequence[Learned], dims: Dims, share: float, seed: int) -> np.ndarray:
    """`[R, T]` true cost of each held-out task as placed after each run."""
    held_out = tasks(changed_split(dims, share, seed)[1], TRAINED, HELD_OUT, seed=300 + seed)
    placers = [make_placer(run.state) for run in runs]
    return np.array([[SIMULATED.true_ms(task, placer.place(task)) for task in held_out] for placer in placers])


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
