"""Evidence from real kernels: fbgemm's fused operators and gloo's all-to-all, 20 tables on two CPU ranks.

Three seeds train the default configuration on 100 placements measured here, on tasks of half of the tables. The 100 held-out
tasks are of the other half. Of each, 20 placements are measured: those of the rules of thumb, four random ones, and those
of every seed's placers. A quarter of them is measured a second time. All are measured in one random order, so that a drift
of the machine meets all alike.

How `dreamshard` chooses between its search and the greedy placement was decided on measurements of an earlier day, of another
split of the tables and other tasks, so these are its test.

The noise floor is how far two measurements of one placement differ. A model without any error would still seem to err by
about 0.7 of it (one over the root of two), since it is judged by one measurement.

The machine must be idle otherwise. It takes half an hour.
"""

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.sampling import TasksConfig, split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import TestbedSetup, open_testbed
from dreamshard.testbeds.base import Testbed
from dreamshard.workloads import (
    LookupFiles,
    WorkloadConfig,
    open_workload,
    write_lookups,
)
from dreamshard.workloads import (
    statistics as table_statistics,
)
from flows.runtime.run_locks import measuring
from tests.benchmarks.gains import gain_over
from tests.benchmarks.held_out import Trained, Vector, by_network, error_rows, rank, train
from tests.benchmarks.measuring import Row, row, spread
from tests.helpers.trained import make_placer

NUM_TABLES, MOST_BYTES, BATCH = 200, 64 * 2**20, 2048
PER_TASK, DEVICES, MEMORY = 20, 2, 2**31
TRAIN_TASKS, TEST_TASKS, RANDOM_EACH = 50, 100, 4
SPLIT_SEED, TRAIN_SEED, TEST_SEED = 1, 6, 201
AGAIN = 0.25  # of the placements
LEARNED = ("dreamshard", "cost_greedy", "paper")


@dataclass(frozen=True)
class Measured:
    """One placement of a held-out task.

    Attributes:
        placer: its name.
        seed: of the training behind it; None for a rule of thumb and random ones.
        again: the same placement measured a second time, for some.
    """

    placer: str
    seed: int | None
    sample: CostSample
    again: CostSample | None


def rows(quick: bool = False) -> Iterator[Row]:
    """Noise, held-out errors, predicted over measured by placer, and costs against the best rule of thumb."""
    seeds = (0,) if quick else (0, 1, 2)
    with tempfile.TemporaryDirectory() as name, measuring():
        pool, lookups = workload(Path(name))
        setup = TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=lookups)
        testbed = open_testbed("cluster:cpu", setup)
        try:
            learning, unseen = split_tables(pool, torch.Generator().manual_seed(SPLIT_SEED))
            tasks = tasks_of(learning, 5 if quick else TRAIN_TASKS, TRAIN_SEED, "train")
            trained = {seed: train(learning, tasks, testbed, seed, papers_policy=True) for seed in seeds}
            held_out = tasks_of(unseen, 3 if quick else TEST_TASKS, TEST_SEED, "unseen")
            found = _measured(testbed, held_out, trained)
        finally:
            testbed.close()
    yield from _noise_rows(found, testbed.hardware)
    judged = [each.sample for each in found if each.seed is None]
    yield from error_rows([each.predictions(judged) for each in trained.values()], judged)
    yield from _ratio_rows(found, trained)
    yield from _gain_rows(found, seeds)


def workload(folder: Path) -> tuple[Tables, LookupFiles]:
    """The default recipe's tables, and more; their lookups as files, for the ranks."""
    config = WorkloadConfig(num_tables=NUM_TABLES, max_table_bytes=MOST_BYTES, batch_size=BATCH)
    parts, paths = [], {}
    for table in open_workload(config).tables():
        paths[table.name] = folder / f"{len(paths)}.parquet"
        write_lookups(paths[table.name], table.lookups)
        parts.append(table_statistics(table))
    return concatenate(parts), LookupFiles(paths, BATCH)


def tasks_of(pool: Tables, count: int, seed: int, name: str) -> list[PlacementTask]:
    config = TasksConfig(tables_per_task=PER_TASK, num_devices=DEVICES, memory_bytes=MEMORY)
    return config.sample(pool, count, torch.Generator().manual_seed(seed), name)


def _placers(trained: Mapping[int, Trained]) -> list[tuple[str, int | None, Placer]]:
    """Every placer with its name, and the seed that it was trained with."""
    found: list[tuple[str, int | None, Placer]] = [(name, None, baselines()[name]) for name in RULES_OF_THUMB]
    found += [("random", None, RandomPlacer(draw)) for draw in range(RANDOM_EACH)]
    for seed, each in trained.items():
        greedy = GreedyCostPlacer(each.state.cost_network, each.state.normaliser)
        own: tuple[Placer, ...] = (each.placer, greedy, make_placer(each.paper))
        found += [(name, seed, placer) for name, placer in zip(LEARNED, own, strict=True)]
    return found


def _measured(testbed: Testbed, tasks: Sequence[PlacementTask], trained: Mapping[int, Trained]) -> list[Measured]:
    """Every placer's placement of every task, measured in random order; some twice."""
    planned: list[tuple[str, int | None, PlacementTask, Placement]] = [
        (name, seed, task, placer.place(task)) for task in tasks for name, seed, placer in _placers(trained)
    ]
    samples: dict[int, list[CostSample]] = {number: [] for number in range(len(planned))}
    for number in order_of(len(planned)):
        _, _, task, placement = planned[number]
        samples[number].append(testbed.measure(task, placement))
    return [
        Measured(name, seed, samples[number][0], samples[number][1] if len(samples[number]) > 1 else None)
        for number, (name, seed, _, _) in enumerate(planned)
    ]


def order_of(count: int) -> list[int]:
    """Numbers of the placements in the order in which they are measured; some are there twice."""
    generator = random.Random(0)
    order = [*range(count), *set(generator.sample(range(count), round(AGAIN * count)))]
    generator.shuffle(order)
    return order


def _noise_rows(found: Sequence[Measured], hardware: str) -> Iterator[Row]:
    """How far two measurements of a placement differ, relative to their mean, and how the second ranks what the first did.

    Of the rules of thumb's and random placements, by which the models are judged too.
    """
    pairs = [(each.sample, each.again) for each in found if each.seed is None and each.again is not None]
    first, second = (_overall([pair[side] for pair in pairs]) for side in (0, 1))
    compute, again = (np.stack([_compute(pair[side]) for pair in pairs]) for side in (0, 1))  # [S, D]
    num_tasks = len({each.sample.task.name for each in found})
    yield row(f"{len(found)} placements of {num_tasks} held-out tasks on {hardware}: mean cost", _mean(found), "ms")
    counted = f"{len(pairs)} of the rules' and random placements measured again"
    yield row(f"noise: {counted}, difference of the overall cost", _difference(first, second), "%")
    yield row(f"noise: {counted}, difference of the compute of a device", _difference(compute, again), "%")
    names = [sample.task.name for sample, _ in pairs]
    yield row(f"noise: {counted}, rank correlation within a task", rank(first, second, names), "")


def _difference(first: Vector, second: Vector) -> float:
    return float(100 * (2 * np.abs(first - second) / (first + second)).mean())


def _ratio_rows(found: Sequence[Measured], trained: Mapping[int, Trained]) -> Iterator[Row]:
    """Predicted over measured of each placer's placements: by its own seed's network, and by the other seeds'."""
    for placer in dict.fromkeys(each.placer for each in found):
        chosen = [each for each in found if each.placer == placer]
        own, other = [], []
        for seed, training in trained.items():
            for is_own, ratios in ((True, own), (False, other)):
                judged = [each.sample for each in chosen if (each.seed in (None, seed)) == is_own]
                if judged:
                    ratios.append(float((by_network(training.state, judged).overall / _overall(judged)).mean()))
        beside = f"; by the networks of other seeds {statistics.mean(other):.3f}" if other else ""
        yield row(f"{placer}: predicted over measured {spread(own, 1, '')}{beside}", statistics.mean(own), "")


def _gain_rows(found: Sequence[Measured], seeds: Sequence[int]) -> Iterator[Row]:
    """Mean measured cost over the best rule of thumb's, with intervals over tasks and seeds."""
    costs = {name: _costs(found, name, None) for name in RULES_OF_THUMB}  # [T]
    best = min(costs, key=lambda name: float(costs[name].mean()))
    reference = np.tile(costs[best], (len(seeds), 1))  # [S, T]
    for name in (*RULES_OF_THUMB, "random", *LEARNED):
        if name == best:
            continue
        own = np.stack([_costs(found, name, seed if name in LEARNED else None) for seed in seeds])  # [S, T]
        gain = gain_over(own, reference)
        if gain.mean is not None and gain.low is not None and gain.high is not None:  # no measured cost is infinite
            interval = f"({1 - gain.high:.3f}-{1 - gain.low:.3f})"
            yield row(f"{name}'s cost / that of the best rule, {best} {interval}", 1 - gain.mean, "", 1.0)


def _costs(found: Sequence[Measured], placer: str, seed: int | None) -> Vector:
    """`[T]` measured costs of a placer; means where it made several placements of a task."""
    by_task: dict[str, list[float]] = {}
    for each in found:
        if (each.placer, each.seed) == (placer, seed):
            by_task.setdefault(each.sample.task.name, []).append(each.sample.overall_ms)
    return np.asarray([statistics.mean(costs) for _, costs in sorted(by_task.items())])


def _overall(samples: Sequence[CostSample]) -> Vector:
    return np.asarray([sample.overall_ms for sample in samples])


def _compute(sample: CostSample) -> Vector:
    costs = sample.costs
    return (costs.forward_compute_ms + costs.backward_compute_ms).double().numpy()


def _mean(found: Sequence[Measured]) -> float:
    return float(_overall([each.sample for each in found]).mean())
