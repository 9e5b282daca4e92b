"""Cost networks: what the MDP, the search, training and model files ask of them, their fit, and their error.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each
device's sum into milliseconds. The MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.evaluator import ShardEvaluator
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.work_ratios import work_ratios
from dreamshard.costs import ExchangeSample
from dreamshard.measured_on import MeasuredOn, StepSetting
from dreamshard.prediction_metrics import mean_relative_error, rank_correlation, rank_correlations
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

Architecture = Literal["structured", "paper"]


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


@runtime_checkable
class CostModel(Protocol):
    """What a search asks of a prediction of costs; `CostNetwork` describes each method."""

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        ...

    def evaluator(self) -> ShardEvaluator:
        """The same in NumPy."""
        ...


class CostNetwork(nn.Module, ABC):
    """Predicts the cost of placements from features of their tables.

    Attributes:
        measured_on: what it was fitted to; None before the first fit, and where a file does not say.
    """

    architecture: Architecture
    latent_size: int
    measured_on: MeasuredOn | None = None

    @abstractmethod
    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Latent vector of each table.

        Args:
            normalised: features of the tables.
            ratios: from `work_ratios`, for steps of another setting than the network's; None for its own.
        """

    def ratios(self, tasks: Sequence[PlacementTask]) -> Float[Tensor, "B T 4"] | None:
        """`work_ratios` of tasks of equally many tables; None where all have the network's setting, or it is unknown."""
        if self.measured_on is None:
            return None
        fitted = self.measured_on.setting
        wanted = [
            StepSetting(
                precision=task.precision, optimizer=task.optimizer, batch_size=task.batch_size or fitted.batch_size
            )
            for task in tasks
        ]
        if all(setting == fitted for setting in wanted):
            return None
        return torch.stack([work_ratios(task.tables, fitted, own) for task, own in zip(tasks, wanted, strict=True)])

    @abstractmethod
    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Milliseconds per device and phase, in the order of `dreamshard.costs.PHASES`."""

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.phases_ms(sums).sum(dim=-1).max(dim=-1).values

    def single_ms(self, latents: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
        """Cost of each table alone on a single device."""
        return self.phases_ms(latents[..., None, :]).sum((-1, -2))

    def first_ms(self, latents: Float[Tensor, "*B L"], num_devices: int) -> Float[Tensor, "*B"]:
        """Cost of each table on the first of empty devices, in whose descending order the MDP places them.

        Unlike `single_ms` it has the all-to-all, by which a wide table comes early, while there is still a choice.
        """
        alone = latents[..., None, :]
        empty = torch.zeros_like(alone).expand(*alone.shape[:-2], num_devices - 1, alone.shape[-1])
        return self.phases_ms(torch.cat([alone, empty], dim=-2))[..., 0, :].sum(-1)

    def draw(self, data: CostData, batch: int, generator: torch.Generator) -> Int[Tensor, "..."]:
        """What one step of the fit uses, in the form that `loss` takes: indices of samples, each at most once."""
        size = len(data.task_names)
        return torch.randperm(size, generator=generator)[: min(batch, size)]

    @abstractmethod
    def loss(self, data: CostData, chosen: Int[Tensor, "..."]) -> Float[Tensor, ""]:
        """The training loss on what `draw` chose."""

    @abstractmethod
    def evaluator(self) -> ShardEvaluator:
        """The network as it is now in NumPy, for the many small steps of placing."""

    def arguments(self) -> dict[str, int]:
        """Arguments of the constructor that model files keep; see `new_cost_network`."""
        return {}

    def prepare(self, data: CostData, *, first: bool) -> None:
        """Set what has a closed form; called before each fit, with `first` before the first fit of an untrained network.

        Raises:
            ValueError: the network cannot use these samples together.
        """
        del first
        self._check_one_layout(data)

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Take what all-to-alls cost by themselves from samples of one hardware; ignored by a network that cannot."""

    def knows_topology(self, task: PlacementTask) -> bool:
        """Whether all-to-alls of the task's devices and hosts were measured."""
        return self.measured_on is not None and self.measured_on.shares_hosts_as(task)

    def for_task(self, task: PlacementTask) -> "CostNetwork":
        """This network with the communication of the task's devices and hosts; it shares all weights."""
        del task
        return self

    def predicted_overall_ms(self, data: CostData) -> Float[Tensor, " S"]:
        """The overall cost of measured placements.

        Raises:
            ValueError: they differ in their devices, and the network serves one number of devices at a time.
        """
        self._check_one_layout(data)
        return self.overall_ms(data.sums(self.encode))

    def _check_one_layout(self, data: CostData) -> None:
        layouts = data.by_layout()
        if len(layouts) > 1:
            raise ValueError(
                f"the {self.architecture!r} network cannot use cost samples of several layouts (devices, devices per host) "
                f"at once: {sorted(layouts, key=str)}; pass the samples of one, or use the network 'structured'"
            )

    def fit_steps(
        self, optimizer: torch.optim.Optimizer, data: CostData, batches: Sequence[Int[Tensor, "..."]]
    ) -> float:
        """Take one optimizer step per batch that `draw` chose; returns the sum of the losses."""
        return descend(optimizer, (self.loss(data, chosen) for chosen in batches))


def descend(optimizer: torch.optim.Optimizer, losses: Iterable[Float[Tensor, ""]]) -> float:
    """Take an optimizer step for each loss; returns their sum."""
    total = torch.zeros(())
    for value in losses:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        optimizer.step()
        total += value.detach()
    return float(total)


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
    batches = [network.draw(data, batch, generator) for _ in range(steps)]
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
    predicted, measured = network.predicted_overall_ms(data).numpy(), data.overall_ms.numpy()
    ranks = rank_correlations(predicted, measured, data.task_names) or [rank_correlation(predicted, measured)]
    defined = [0.0 if math.isnan(rank) else rank for rank in ranks]
    return PredictionError(mean_relative_error(predicted, measured), sum(defined) / len(defined))


def shard_sums(latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D L"]:
    """Latents summed over each device's tables."""
    sums = latents.new_zeros(device.shape[0], num_devices, latents.shape[1])
    index = device[:, :, None].expand(-1, -1, latents.shape[1])
    return sums.scatter_add_(1, index, latents.expand(device.shape[0], -1, -1))


def shard_latents(
    network: CostNetwork, normaliser: Normaliser, task: PlacementTask, whole: Tables
) -> Float[Tensor, "T L"]:
    """Latents of the tables, or of the column shards, of a task of these whole tables."""
    ratios = network.ratios([task])
    return network.encode(normaliser.of_task(whole)(task.tables), None if ratios is None else ratios[0])


def predict_ms(
    network: CostModel, latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int
) -> Float[Tensor, " B"]:
    """Predicted overall cost of many placements of the same tables."""
    return network.overall_ms(shard_sums(latents, device, num_devices))


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
