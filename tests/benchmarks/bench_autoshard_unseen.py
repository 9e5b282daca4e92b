"""AutoShard on tasks with other shares of unseen tables than it was trained on, without retraining.

Trained at 50x4 with mixed dims on half of Meta's tables of 2021, three seeds. Placed are tasks of the same size, of whose
tables none, a quarter, half or all are of the other half, so seen and unseen tables are alike but for that. Tasks of the same
number share as many tables as their shares allow. Costs are true compute of the slowest device. What is saved over the rule
of thumb with the least compute, and over greedy on the true compute, has a 95 % interval over tasks and seeds.
"""

import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.sampling import split_tables
from dreamshard.tasks import PlacementTask
from tests.benchmarks.bench_autoshard import OWN, Judged, TrueGreedy, judged, saved_over, trained
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import TRAINED, meta_tables, task_of

SEEDS, COUNT, QUICK_COUNT = (0, 1, 2), 40, 3
UNSEEN = (0, 12, 25, 50)
"""Unseen tables of a task of 50."""


def rows(quick: bool = False) -> Iterator[Row]:
    """Compute of the slowest device against the best rule of thumb, for each share of unseen tables."""
    seeds, count = (SEEDS[:1], QUICK_COUNT) if quick else (SEEDS, COUNT)
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        found = list(processes.map(_seed, [(seed, count) for seed in seeds]))
    for unseen in UNSEEN:
        drawn, ours = tasks_with(unseen, count), [by_unseen[unseen] for by_unseen in found]
        rules = {name: judged(baselines()[name], drawn) for name in RULES_OF_THUMB}
        best, greedy = min(rules, key=lambda name: rules[name].compute_ms), judged(TrueGreedy(), drawn)
        costs, balance = [each.compute_ms for each in ours], statistics.mean(each.balance for each in ours)
        what = (
            f"{OWN}, {unseen} of {TRAINED.tables} tables unseen: compute of the slowest device {spread(costs, 1, 'ms')}, "
            f"balance {balance:.2f}, saves {saved_over(rules[best], ours)} % over {best}, {saved_over(greedy, ours)} % "
            f"over greedy on the true compute ({greedy.compute_ms:.3g} ms); reference: {best}"
        )
        yield row(what, statistics.mean(costs), "ms", None, rules[best].compute_ms)


def tasks_with(unseen: int, count: int) -> list[PlacementTask]:
    """Tasks of the trained size with that many unseen tables; the others are training tables."""
    seen_pool, unseen_pool = _halves()
    generator, found = torch.Generator().manual_seed(300), []
    for number in range(count):
        of_seen, of_unseen = (torch.randperm(len(pool), generator=generator) for pool in (seen_pool, unseen_pool))
        seen_tables = seen_pool.select(of_seen[: TRAINED.tables - unseen])
        tables = concatenate([seen_tables, unseen_pool.select(of_unseen[:unseen])])
        found.append(task_of(tables, TRAINED.devices, f"{unseen}-unseen-{number:03}"))
    return found


def _halves() -> tuple[Tables, Tables]:
    """The tables of 2021: those trained on, as `pools` splits them, and the others."""
    return split_tables(meta_tables("meta-dlrm-2021", "mixed"), torch.Generator().manual_seed(0))


def _seed(job: tuple[int, int]) -> dict[int, Judged]:
    seed, count = job
    torch.set_num_threads(1)
    placer = trained(OWN, seed)
    return {unseen: judged(placer, tasks_with(unseen, count)) for unseen in UNSEEN}
