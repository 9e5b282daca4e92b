"""Fit a cost network to measured placements, and measure its error on others."""

import math
from dataclasses import dataclass

import torch

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.network import CostNetwork
from dreamshard.prediction_metrics import groups_to_rank, mean_relative_error, rank_correlation


class TrainingDivergedError(RuntimeError):
    """A loss is not finite; the last checkpoint is intact."""


@dataclass(frozen=True)
class PredictionError:
    """How well a network predicts samples it was not fitted to.

    Attributes:
        mape: mean absolute relative error of the overall cost.
        spearman: mean rank correlation of the overall cost within a task, over the tasks with at least 3 placements;
            over all samples where there is no such task.
    """

    mape: float
    spearman: float


def fit(
    network: CostNetwork,
    optimizer: torch.optim.Optimizer,
    data: CostData,
    *,
    steps: int,
    batch: int,
    generator: torch.Generator,
) -> float:
    """Take `steps` optimizer steps on batches drawn from `data`; returns the mean loss.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    size = len(data.task_names)
    batches = [torch.randperm(size, generator=generator)[: min(batch, size)] for _ in range(steps)]
    mean_loss = network.fit_steps(optimizer, data, batches) / max(steps, 1)
    if not math.isfinite(mean_loss):
        raise TrainingDivergedError(
            f"the cost network's loss became {mean_loss} within {steps} steps, so its predictions are worthless; "
            "the last checkpoint is intact: look for extreme cost samples, or lower the learning rate"
        )
    return mean_loss


@torch.no_grad()
def prediction_error(network: CostNetwork, data: CostData) -> PredictionError:
    """Error of the overall cost on `data`; a rank correlation that is not defined counts as 0."""
    predicted, measured = network.overall_ms(data.sums(network.encode)).numpy(), data.overall_ms.numpy()
    groups = groups_to_rank(data.task_names) or [list(range(len(data.task_names)))]
    ranks = [rank_correlation(predicted[group], measured[group]) for group in groups]
    defined = [0.0 if math.isnan(rank) else rank for rank in ranks]
    return PredictionError(mean_relative_error(predicted, measured), sum(defined) / len(defined))
