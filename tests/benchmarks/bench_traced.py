"""How well costs are learnt on the testbed `traced`, whose law is not ours: 20 tables on 2 devices of a V100 node.

Each seed is one training of the default configuration: 100 placements measured in ten rounds on tasks of half of the tables.
All models (`held_out`) are fitted to these same samples. They predict the rules of thumb's placements and random ones of
tasks of the other tables.

The overall cost has two all-to-alls, which every model can learn from sums of dims; the rows of the compute phases, forward
and backward together on each device, are the evidence.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dreamshard.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.costs import CostSample
from dreamshard.placer import Placer
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sampling import sample_tasks, split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import RTX2080TI, V100
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.traced import TracedTestbed
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.opening import open_workload
from dreamshard.workloads.table_statistics import statistics as table_statistics
from tests.benchmarks.held_out import Trained, error_rows, train
from tests.benchmarks.measuring import Row, row, spread

NUM_TABLES, PER_TASK, DEVICES = 200, 20, 2
BATCH, SAMPLED = 8192, 64
TEST_TASKS, RANDOM_EACH = 8, 4
MEMORY = 2**45


@dataclass(frozen=True)
class Setting:
    """The tables in two halves, a testbed, and measured placements of the unseen half."""

    train: Tables
    bed: TracedTestbed
    lookups: dict[str, Lookups]
    test_tasks: list[PlacementTask]
    test: list[CostSample]


def rows(quick: bool = False) -> Iterator[Row]:
    """Sampling error and time of the testbed, held-out error of each model, and placements against rules of thumb."""
    setting = _setting(3 if quick else TEST_TASKS)
    yield from _testbed_rows(setting, quick)
    seeds = (0,) if quick else (0, 1, 2)
    trained = [_train(setting, seed) for seed in seeds]
    yield from error_rows([each.predictions(setting.test) for each in trained], setting.test)
    yield from _placement_rows(setting, [each.placer for each in trained])


def _setting(num_tasks: int) -> Setting:
    workload = open_workload(WorkloadConfig(num_tables=NUM_TABLES, batch_size=BATCH))
    parts, lookups = [], {}
    for table in workload.tables():
        parts.append(table_statistics(table))
        lookups[table.name] = table.lookups
    train, unseen = split_tables(concatenate(parts), torch.Generator().manual_seed(0))
    setup = TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=lookups.__getitem__)
    bed = TracedTestbed(setup, V100, SAMPLED)
    generator = torch.Generator().manual_seed(100)
    tasks = sample_tasks(unseen, num_tasks, PER_TASK, DEVICES, MEMORY, generator, name="unseen")
    placers = [*(baselines()[rule] for rule in RULES_OF_THUMB), *(RandomPlacer(draw) for draw in range(RANDOM_EACH))]
    test = [bed.measure(task, placer.place(task)) for task in tasks for placer in placers]
    return Setting(train, bed, lookups, tasks, test)


def _testbed_rows(setting: Setting, quick: bool) -> Iterator[Row]:
    """CPU time of a placement, and the sampling error against a simulation of every set."""
    few = setting.test[: 2 if quick else 6]
    every = TracedTestbed(setting.bed.setup, V100, 1)
    exact = np.asarray([every.measure(sample.task, sample.placement).overall_ms for sample in few])
    error = np.abs(np.asarray([sample.overall_ms for sample in few]) / exact - 1)
    stated = [sample.spread_ms / 1.349 / sample.repeats**0.5 / sample.overall_ms for sample in few]
    name = (
        f"1 of {SAMPLED} cache sets: error of the overall cost against all sets, stated {100 * np.mean(stated):.2g} %"
    )
    yield row(f"{name} (largest {100 * error.max():.2g} %)", 100 * float(error.mean()), "%")
    sizes = [(20, 2, 2048)] if quick else [(20, 2, 2048), (20, 2, BATCH), (50, 4, BATCH)]
    for tables, devices, batch in sizes:
        setup = replace(setting.bed.setup, num_devices=devices, batch_size=batch)
        bed, chosen = TracedTestbed(setup, RTX2080TI), setting.train.select(range(tables))
        task = PlacementTask(chosen, devices, MEMORY)
        times = []
        for draw in range(4):
            began = time.process_time()
            bed.measure(task, RandomPlacer(draw).place(task))
            times.append(time.process_time() - began)
        name = (
            f"{tables}x{devices} at batch {batch}: CPU time of a placement of known tables (first one {times[0]:.2g} s)"
        )
        yield row(name, statistics.median(times[1:]), "s", 1.0)


def _train(setting: Setting, seed: int) -> Trained:
    tasks = sample_tasks(setting.train, 50, PER_TASK, DEVICES, MEMORY, torch.Generator().manual_seed(seed))
    return train(setting.train, tasks, setting.bed, seed)


def _placement_rows(setting: Setting, placers: Sequence[Placer]) -> Iterator[Row]:
    """Measured cost of our placements of whole tables over each rule's, on unseen tables."""
    measured = {
        rule: [setting.bed.measure(task, baselines()[rule].place(task)).overall_ms for task in setting.test_tasks]
        for rule in RULES_OF_THUMB
    }
    ours = [
        [setting.bed.measure(task, placer.place(task)).overall_ms for task in setting.test_tasks] for placer in placers
    ]
    best = min(measured, key=lambda rule: sum(measured[rule]))
    for rule, costs in measured.items():
        ratios = [sum(own) / sum(costs) for own in ours]
        best_one = " (the best rule)" if rule == best else ""
        yield row(f"dreamshard's cost / {rule}'s{best_one} {spread(ratios, 1, '')}", statistics.mean(ratios), "", 1.0)
    least = [min(costs[i] for costs in measured.values()) for i in range(len(setting.test_tasks))]
    ratios = [sum(own) / sum(least) for own in ours]
    yield row(
        f"dreamshard's cost / the best rule of each task's {spread(ratios, 1, '')}", statistics.mean(ratios), "", 1.0
    )
