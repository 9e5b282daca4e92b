"""Evidence from real kernels: fbgemm's fused operators and gloo's all-to-all, 20 tables on two CPU ranks.

Three seeds train the default configuration on 100 placements measured here, on tasks of half of the tables, and the paper's
networks on the same placements. The 100 held-out tasks are of the other half. The rules of thumb, four random placements and
every seed's placers place each task; a quarter of the placements is measured a second time, all in one random order, so that
a drift of the machine meets all alike.

Predictions are judged on the placements of rules and random ones, beside a linear model of five features summed over the
tables of a device: dim, rows, pooling factor, dim x pooling factor, distinct rows. The noise floor is how far two
measurements of one placement differ. A model without any error would seem to err by about 0.7 of it.

The machine must be idle otherwise. It takes half an hour.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from dreamshard.cost_model import CostData, mean_relative_error
from dreamshard.costs import CostSample
from dreamshard.placer import Placer
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.sampling import TasksConfig, split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import TestbedSetup, open_testbed
from dreamshard.testbeds.base import Testbed
from dreamshard.training import TrainingConfig, TrainingState, with_algorithm
from dreamshard.workloads import LookupFiles, WorkloadConfig, open_workload, write_lookups
from dreamshard.workloads import statistics as table_statistics
from flows.runtime.run_locks import measuring
from tests.benchmarks.gains import gain_over
from tests.benchmarks.measuring import Row, rank, row, spread
from tests.helpers.trained import fit_costs, improve_policy, make_placer, propose, start_training

NUM_TABLES, MOST_BYTES, BATCH = 200, 64 * 2**20, 2048
PER_TASK, DEVICES, MEMORY = 20, 2, 2**31
TRAIN_TASKS, TEST_TASKS, RANDOM_EACH, AGAIN = 50, 100, 4, 0.25
SPLIT_SEED, TRAIN_SEED, TEST_SEED = 1, 6, 201
LEARNED, RULE_SEED = ("dreamshard", "cost_greedy", "paper"), -1  # the seed of what learns nothing
COMPUTE = [0, 3]  # of the phases
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """The default networks and the paper's, after one training, and the samples that both were fitted to."""

    state: TrainingState
    paper: TrainingState
    samples: Sequence[CostSample]

    def placers(self) -> list[Placer]:
        """In the order of `LEARNED`; the default one keeps tables whole."""
        greedy = GreedyCostPlacer(self.state.cost_network, self.state.normaliser)
        return [replace(make_placer(self.state), columns=False), greedy, make_placer(self.paper)]


def rows(quick: bool = False) -> Iterator[Row]:
    """Noise, held-out errors, predicted over measured by placer, and costs against the best rule of thumb."""
    seeds = (0,) if quick else (0, 1, 2)
    with tempfile.TemporaryDirectory() as name, measuring():
        pool, lookups = workload(Path(name))
        testbed = open_testbed("cluster:cpu", TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=lookups))
        try:
            learning, unseen = split_tables(pool, torch.Generator().manual_seed(SPLIT_SEED))
            tasks = tasks_of(learning, 5 if quick else TRAIN_TASKS, TRAIN_SEED, "train")
            trained = [train(learning, tasks, testbed, seed) for seed in seeds]
            found = _measured(testbed, tasks_of(unseen, 3 if quick else TEST_TASKS, TEST_SEED, "unseen"), trained)
        finally:
            testbed.close()
    yield from _noise_rows(found, testbed.hardware)
    yield from _error_rows(list(found[found.seed == RULE_SEED]["sample"]), trained)
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


def train(pool: Tables, tasks: Sequence[PlacementTask], testbed: Testbed, seed: int) -> Trained:
    """Train the default configuration, and the paper's on the placements that it measures."""
    state = start_training(pool, TrainingConfig(), seed)
    paper = start_training(pool, with_algorithm(TrainingConfig(), "paper"), seed)
    samples: list[CostSample] = []
    for _ in range(state.config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, tasks)]
        for each in (state, paper):
            fit_costs(each, samples)
            improve_policy(each, tasks)
    return Trained(state, paper, samples)


def _measured(testbed: Testbed, tasks: Sequence[PlacementTask], trained: Sequence[Trained]) -> pd.DataFrame:
    """Every placer's placement of every task, measured in random order; `again` is None unless measured twice."""
    placers: list[tuple[str, int, Placer]] = [(name, RULE_SEED, baselines()[name]) for name in RULES_OF_THUMB]
    placers += [("random", RULE_SEED, RandomPlacer(draw)) for draw in range(RANDOM_EACH)]
    for seed, each in enumerate(trained):
        placers += [(name, seed, placer) for name, placer in zip(LEARNED, each.placers(), strict=True)]
    planned = [(name, seed, task, placer.place(task)) for task in tasks for name, seed, placer in placers]
    generator, samples = random.Random(0), dict[int, list[CostSample]]()
    order = [*range(len(planned)), *generator.sample(range(len(planned)), round(AGAIN * len(planned)))]
    generator.shuffle(order)
    for number in order:
        samples.setdefault(number, []).append(testbed.measure(*planned[number][2:]))
    return pd.DataFrame(
        {"placer": name, "seed": seed, "task": task.name, "sample": samples[i][0], "again": [*samples[i], None][1]}
        for i, (name, seed, task, _) in enumerate(planned)
    ).assign(ms=lambda frame: [sample.overall_ms for sample in frame["sample"]])


def _noise_rows(found: pd.DataFrame, hardware: str) -> Iterator[Row]:
    """How far two measurements of a placement differ, relative to their mean, and how the second ranks as the first."""
    pairs = found[(found.seed == RULE_SEED) & found.again.notna()]
    first, second = (_overall(pairs[side]) for side in ("sample", "again"))
    compute, again = (np.stack([_compute(sample) for sample in pairs[side]]) for side in ("sample", "again"))
    name = f"{len(found)} placements of {found.task.nunique()} held-out tasks on {hardware}: mean cost"
    yield row(name, float(found.ms.mean()), "ms")
    noise = f"noise: {len(pairs)} of the rules' and random placements measured again"
    for of, one, other in (("overall cost", first, second), ("compute of a device", compute, again)):
        yield row(f"{noise}, difference of the {of}", float(200 * (np.abs(one - other) / (one + other)).mean()), "%")
    yield row(f"{noise}, rank correlation within a task", rank(first, second, list(pairs.task)), "")


def _error_rows(judged: Sequence[CostSample], trained: Sequence[Trained]) -> Iterator[Row]:
    """Each model's error and rank correlation of the overall cost: means and ranges over trainings."""
    measured, names = _overall(judged), [sample.task.name for sample in judged]
    models = {
        "structured": [_predicted(each.state, judged) for each in trained],
        "paper": [_predicted(each.paper, judged) for each in trained],
        "linear in 5 features": [_by_line(each.samples, judged) for each in trained],
    }
    for name, predictions in models.items():
        errors = np.array([100 * mean_relative_error(each, measured) for each in predictions])
        ranks = np.array([rank(each, measured, names) for each in predictions])
        yield row(f"{name}: held-out error {spread(errors, 1, '%')}", errors.mean(), "%", 5.0)
        label = f"{name}: rank correlation within a task {spread(ranks, 1, '')}"
        yield row(label, ranks.mean(), "", 0.95, more_is_better=True)


@torch.no_grad()
def _predicted(state: TrainingState, samples: Sequence[CostSample]) -> Vector:
    """`[S]` overall milliseconds by a state's cost network."""
    network = state.cost_network
    data = CostData.of(samples, state.normaliser)
    return network.predicted(data)[0].double().numpy()


def _by_line(fitted: Sequence[CostSample], judged: Sequence[CostSample]) -> Vector:
    """`[S]` by least squares per device."""
    design = np.concatenate([_five_features(sample) for sample in fitted])
    device_ms = np.concatenate([sample.costs.device_ms().numpy() for sample in fitted])
    line = np.linalg.lstsq(design, device_ms, rcond=None)[0]
    return np.array([(_five_features(sample) @ line).max() for sample in judged])


def _five_features(sample: CostSample) -> Vector:
    """`[D, 6]` the five features and a constant."""
    tables, num_devices = sample.task.tables, sample.task.num_devices
    own = [getattr(tables, name).double() for name in ("dim", "rows", "pooling_factor", "unique_rows")]
    columns = torch.stack([*own, tables.dim * tables.pooling_factor], dim=1).double()  # [T, 5]
    sums = torch.zeros(num_devices, 5, dtype=torch.float64).index_add(0, sample.placement.device, columns)
    return np.concatenate([sums.numpy(), np.ones((num_devices, 1))], axis=1)


def _ratio_rows(found: pd.DataFrame, trained: Sequence[Trained]) -> Iterator[Row]:
    """Predicted over measured of each placer's placements: by its own seed's network, and by the other seeds'."""
    for placer, chosen in found.groupby("placer", sort=False):
        by_origin: dict[bool, list[float]] = {True: [], False: []}
        for seed, each in enumerate(trained):
            for is_own, judged in chosen.groupby(chosen.seed.isin((RULE_SEED, seed))):
                ratios = _predicted(each.state, list(judged["sample"])) / judged.ms
                by_origin[bool(is_own)].append(float(ratios.mean()))
        own, other = by_origin[True], by_origin[False]
        note = f"; by the networks of other seeds {np.mean(other):.3f}" if other else ""
        yield row(f"{placer}: predicted over measured {spread(own, 1, '')}{note}", float(np.mean(own)), "")


def _gain_rows(found: pd.DataFrame, seeds: Sequence[int]) -> Iterator[Row]:
    """Savings over the best rule of thumb, with intervals over tasks and seeds."""
    costs = found.groupby(["placer", "seed", "task"]).ms.mean()  # of random placements, the mean of a task's
    best = min(RULES_OF_THUMB, key=lambda name: float(costs[name].mean()))
    reference = np.tile(costs[best].to_numpy(), (len(seeds), 1))  # [S, T]
    for name in (*RULES_OF_THUMB, "random", *LEARNED):
        own = np.broadcast_to(costs[name].to_numpy().reshape(-1, reference.shape[1]), reference.shape)
        gain = gain_over(own, reference)
        yield row(f"{name}: saved over the best rule, {best}: {gain}", 100 * (gain.mean or 0.0), "%")


def _overall(samples: Sequence[CostSample]) -> Vector:
    return np.array([sample.overall_ms for sample in samples])


def _compute(sample: CostSample) -> Vector:
    """`[D]` of both compute phases."""
    return sample.costs.phases_ms()[:, COMPUTE].sum(dim=1).double().numpy()
