"""How well costs are learnt on the testbed `traced`, whose law is not ours: 20 tables on 2 devices of a V100 node.

Each seed is one training of the default configuration: 100 placements measured in ten rounds on tasks of half of the tables.
The networks and the linear model are fitted to these same samples, the networks in ten rounds as the samples come. They
predict the rules of thumb's placements and random ones of tasks of the other tables, which no fit has seen. The linear model
has five features, summed over the tables of a device: dim, rows, pooling factor, dim x pooling factor, distinct rows.

The overall cost has two all-to-alls, which every model can learn from sums of dims; the rows of the compute phases, forward
and backward together on each device, are the evidence.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dreamshard.algorithms import with_algorithm
from dreamshard.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.cost_model import CostData, CostNetwork
from dreamshard.costs import CostSample
from dreamshard.prediction_metrics import mean_relative_error, rank_correlations
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask, sample_tasks, split_tables
from dreamshard.testbeds.accelerators.specs import RTX2080TI, V100
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.traced import TracedTestbed
from dreamshard.training import TrainingConfig, fit_costs, improve_policy, make_placer, propose, start_training
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.opening import open_workload
from dreamshard.workloads.table_statistics import statistics as table_statistics
from tests.benchmarks.measuring import Row, row, spread

NUM_TABLES, PER_TASK, DEVICES = 200, 20, 2
BATCH, SAMPLED = 8192, 64
TEST_TASKS, RANDOM_EACH = 8, 4
MEMORY = 2**45
MAPE_BAR, SPEARMAN_BAR = 5.0, 0.95
COMPUTE = [0, 3]  # of the phases


@dataclass(frozen=True)
class Setting:
    """The tables in two halves, a testbed, and measured placements of the unseen half."""

    train: Tables
    bed: TracedTestbed
    lookups: dict[str, Lookups]
    test_tasks: list[PlacementTask]
    test: list[CostSample]


@dataclass(frozen=True)
class Predicted:
    """Milliseconds of the test samples: `[S]` overall, and `[S, D]` of both compute phases."""

    overall: np.ndarray
    compute: np.ndarray


def rows(quick: bool = False) -> Iterator[Row]:
    """Sampling error and time of the testbed, held-out error of each model, and placements against rules of thumb."""
    setting = _setting(3 if quick else TEST_TASKS)
    yield from _testbed_rows(setting, quick)
    seeds = (0,) if quick else (0, 1, 2)
    trained = [_train(setting, seed) for seed in seeds]
    for name in trained[0][0]:
        yield from _error_rows(name, [predictions[name] for predictions, _ in trained], setting.test)
    yield from _placement_rows(setting, [placer for _, placer in trained])


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


def _train(setting: Setting, seed: int) -> tuple[dict[str, Predicted], object]:
    """Predictions of the test samples by each model, and the default placer, which keeps tables whole."""
    tasks = sample_tasks(setting.train, 50, PER_TASK, DEVICES, MEMORY, torch.Generator().manual_seed(seed))
    state = start_training(setting.train, TrainingConfig(), seed)
    paper = start_training(setting.train, with_algorithm(TrainingConfig(), "paper"), seed)
    samples: list[CostSample] = []
    for _ in range(state.config.iterations):
        samples += [setting.bed.measure(task, placement) for task, placement in propose(state, tasks)]
        fit_costs(state, samples)
        improve_policy(state, tasks)
        fit_costs(paper, samples)
        paper.iteration += 1  # its rate falls from round to round, as the other's
    data = CostData.of(setting.test, state.normaliser)
    predictions = {
        "structured": _by_network(state.cost_network, data),
        "paper": _by_network(paper.cost_network, CostData.of(setting.test, paper.normaliser)),
        "linear in 5 features": _by_line(samples, setting.test),
    }
    return predictions, replace(make_placer(state), columns=False)


@torch.no_grad()
def _by_network(network: CostNetwork, data: CostData) -> Predicted:
    phases_ms = network.phases_ms(data.sums(network.encode))  # [S, D, 4]
    return Predicted(network.predicted_overall_ms(data).numpy(), phases_ms[..., COMPUTE].sum(dim=-1).numpy())


def _by_line(fitted: Sequence[CostSample], test: Sequence[CostSample]) -> Predicted:
    """Least squares per device, of the sum of all phases and of the compute phases."""
    design, unseen = np.concatenate([_features(sample) for sample in fitted]), [_features(sample) for sample in test]
    all_ms = np.concatenate([sample.costs.device_ms().numpy() for sample in fitted])
    compute_ms = np.concatenate([_compute_ms(sample) for sample in fitted])
    by_all, by_compute = (np.linalg.lstsq(design, values, rcond=None)[0] for values in (all_ms, compute_ms))
    return Predicted(
        np.asarray([(features @ by_all).max() for features in unseen]),
        np.stack([features @ by_compute for features in unseen]),
    )


def _features(sample: CostSample) -> np.ndarray:
    """`[D, 6]` the five features and a constant."""
    tables, device = sample.task.tables, sample.placement.device
    columns = torch.stack(
        [
            *(getattr(tables, name).double() for name in ("dim", "rows", "pooling_factor", "unique_rows")),
            tables.dim * tables.pooling_factor,
        ],
        dim=1,
    ).double()  # [T, 5]
    sums = torch.zeros(sample.task.num_devices, 5, dtype=torch.float64).index_add(0, device, columns)
    return np.concatenate([sums.numpy(), np.ones((len(sums), 1))], axis=1)


def _compute_ms(sample: CostSample) -> np.ndarray:
    return sample.costs.phases_ms()[:, COMPUTE].sum(dim=1).numpy()


def _error_rows(name: str, predictions: Sequence[Predicted], test: Sequence[CostSample]) -> Iterator[Row]:
    """Overall and compute alone: mean relative error and rank correlation, means and ranges over the seeds."""
    names = [sample.task.name for sample in test]
    overall = np.asarray([sample.overall_ms for sample in test])
    compute = np.stack([_compute_ms(sample) for sample in test])  # [S, D]
    largest = compute.max(axis=1)
    judged = {
        "overall cost": [
            (mean_relative_error(p.overall, overall), _rank(p.overall, overall, names)) for p in predictions
        ],
        "compute of a device": [
            (mean_relative_error(p.compute.ravel(), compute.ravel()), _rank(p.compute.max(axis=1), largest, names))
            for p in predictions
        ],
    }
    for what, found in judged.items():
        mape, rank = [100 * error for error, _ in found], [rank for _, rank in found]
        yield row(f"{name}, {what}: held-out error {spread(mape, 1, '%')}", statistics.mean(mape), "%", MAPE_BAR)
        of = "of the largest device within a task" if what.startswith("compute") else "within a task"
        name_of_rank = f"{name}, {what}: rank correlation {of} {spread(rank, 1, '')}"
        yield row(name_of_rank, statistics.mean(rank), "", SPEARMAN_BAR, more_is_better=True)


def _rank(predicted: np.ndarray, measured: np.ndarray, names: Sequence[str]) -> float:
    return statistics.mean(rank_correlations(predicted, measured, names))


def _placement_rows(setting: Setting, placers: Sequence[object]) -> Iterator[Row]:
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
