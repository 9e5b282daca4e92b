"""What cost models predict for measured placements that no fit has seen, for testbeds whose law is not ours.

The networks and the linear model are fitted to the same samples, the networks in ten rounds as the samples come. The linear
model has five features, summed over the tables of a device: dim, rows, pooling factor, dim x pooling factor, distinct rows.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.cost_model import CostData, mean_relative_error
from dreamshard.costs import CostSample
from dreamshard.evaluation import rank_correlations
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Testbed
from dreamshard.training import TrainingConfig, TrainingState, with_algorithm
from tests.benchmarks.measuring import Row, row, spread
from tests.helpers.trained import fit_costs, improve_policy, make_placer, propose, start_training

MAPE_BAR, SPEARMAN_BAR = 5.0, 0.95
COMPUTE = [0, 3]  # of the phases
LINEAR = "linear in 5 features"
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """Milliseconds of samples: `[S]` overall, and `[S, D]` of both compute phases."""

    overall: Vector
    compute: Vector


@dataclass(frozen=True)
class Trained:
    """The default networks, the paper's, and the line, after one training.

    Attributes:
        samples: measured placements that all were fitted to.
    """

    state: TrainingState
    paper: TrainingState
    samples: Sequence[CostSample]

    @property
    def placer(self) -> DreamShardPlacer:
        """The default placer, which keeps tables whole."""
        return replace(make_placer(self.state), columns=False)

    def predictions(self, test: Sequence[CostSample]) -> dict[str, Predicted]:
        """Of each model, for samples of one number of devices."""
        return {
            "structured": by_network(self.state, test),
            "paper": by_network(self.paper, test),
            LINEAR: _by_line(self.samples, test),
        }


def train(
    pool: Tables, tasks: Sequence[PlacementTask], testbed: Testbed, seed: int, *, papers_policy: bool = False
) -> Trained:
    """Train the default configuration, and the paper's cost network on the placements that it measures.

    Args:
        papers_policy: whether to train the paper's policy too, so that its placer can be used.
    """
    state = start_training(pool, TrainingConfig(), seed)
    paper = start_training(pool, with_algorithm(TrainingConfig(), "paper"), seed)
    samples: list[CostSample] = []
    for _ in range(state.config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, tasks)]
        for each in (state, paper):
            fit_costs(each, samples)
        improve_policy(state, tasks)
        if papers_policy:
            improve_policy(paper, tasks)
        else:
            paper.iteration += 1  # its rate falls from round to round, as the other's
    return Trained(state, paper, samples)


@torch.no_grad()
def by_network(state: TrainingState, samples: Sequence[CostSample]) -> Predicted:
    """What a state's cost network predicts."""
    network = state.cost_network
    data = CostData.of(samples, state.normaliser, network.measured_on.setting if network.measured_on else None)
    phases_ms = network.phases_ms(data.sums(network.encode))  # [S, D, 4]
    return Predicted(network.predicted(data)[0].numpy(), phases_ms[..., COMPUTE].sum(dim=-1).numpy())


def _by_line(fitted: Sequence[CostSample], test: Sequence[CostSample]) -> Predicted:
    """Least squares per device, of the sum of all phases and of the compute phases."""
    design, unseen = (
        np.concatenate([shard_features(sample) for sample in fitted]),
        [shard_features(sample) for sample in test],
    )
    all_ms = np.concatenate([sample.costs.device_ms().numpy() for sample in fitted])
    compute_ms = np.concatenate([_compute_ms(sample) for sample in fitted])
    by_all, by_compute = (np.linalg.lstsq(design, values, rcond=None)[0] for values in (all_ms, compute_ms))
    return Predicted(
        np.asarray([(features @ by_all).max() for features in unseen]),
        np.stack([features @ by_compute for features in unseen]),
    )


def shard_features(sample: CostSample) -> Vector:
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


def _compute_ms(sample: CostSample) -> Vector:
    return sample.costs.phases_ms()[:, COMPUTE].sum(dim=1).numpy()


def error_rows(predictions: Sequence[dict[str, Predicted]], test: Sequence[CostSample]) -> Iterator[Row]:
    """Each model's error and rank correlation, of the overall cost and of compute alone: means and ranges over trainings."""
    for name in predictions[0]:
        yield from _rows_of(name, [each[name] for each in predictions], test)


def _rows_of(name: str, predictions: Sequence[Predicted], test: Sequence[CostSample]) -> Iterator[Row]:
    names = [sample.task.name for sample in test]
    overall = np.asarray([sample.overall_ms for sample in test])
    compute = np.stack([_compute_ms(sample) for sample in test])  # [S, D]
    largest = compute.max(axis=1)
    judged = {
        "overall cost": [
            (mean_relative_error(p.overall, overall), rank(p.overall, overall, names)) for p in predictions
        ],
        "compute of a device": [
            (mean_relative_error(p.compute.ravel(), compute.ravel()), rank(p.compute.max(axis=1), largest, names))
            for p in predictions
        ],
    }
    for what, found in judged.items():
        mape, ranks = [100 * error for error, _ in found], [each for _, each in found]
        yield row(f"{name}, {what}: held-out error {spread(mape, 1, '%')}", statistics.mean(mape), "%", MAPE_BAR)
        of = "of the largest device within a task" if what.startswith("compute") else "within a task"
        name_of_rank = f"{name}, {what}: rank correlation {of} {spread(ranks, 1, '')}"
        yield row(name_of_rank, statistics.mean(ranks), "", SPEARMAN_BAR, more_is_better=True)


def rank(predicted: Vector, measured: Vector, names: Sequence[str]) -> float:
    """Mean over the names of the rank correlation within each."""
    return statistics.mean(rank_correlations(predicted, measured, names))
