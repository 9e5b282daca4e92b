"""Cost networks: measured placements as tensors, the networks' interface, their fit, and their error.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each device's
sum into milliseconds. A search and the MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dreamshard.cost_model.compiled import DeviceLaw
from dreamshard.cost_model.features import VECTORS, Normaliser, work_ratios
from dreamshard.costs import PHASES, CostSample, DeviceCosts, MeasuredOn
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask

COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


class TrainingDivergedError(RuntimeError):
    """A loss is not finite; the last checkpoint is intact."""


@dataclass(frozen=True)
class CostData:
    """Measured placements on the same devices and hosts, in the same setting.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        ratios: `[P, 5]` of `work_ratios`: their vectors, and 1 otherwise.
        assignment: `[S, D, P]` number of tables `p` on device `d` of sample `s`.
        phases_ms: `[S, D, 4]` measured; NaN for devices that were not seen.
        measured_on: origin of the newest sample.
        weight: `[S, D]` measurements that a device of a sample counts as.
        error: `[S, D]` relative standard error besides that of measurements; of what a preset says instead of a measurement.
    """

    features: Float[Tensor, "P F"]
    ratios: Float[Tensor, "P 5"]
    assignment: Float[Tensor, "S D P"]
    phases_ms: Float[Tensor, "S D 4"]
    measured_on: MeasuredOn
    weight: Float[Tensor, "S D"]
    error: Float[Tensor, "S D"]

    @cached_property
    def seen(self) -> Bool[Tensor, "S D"]:
        """Devices that were measured."""
        return DeviceCosts(self.phases_ms).seen

    @property
    def overall_ms(self) -> Float[Tensor, " S"]:
        """`[S]` the sum of the slowest device that was seen."""
        return DeviceCosts(self.phases_ms).overall_ms()

    @cached_property
    def holding(self) -> Bool[Tensor, "S D"]:
        """Devices that were measured with tables."""
        return self.assignment.any(dim=-1) & self.seen

    @classmethod
    def of(cls, samples: Sequence[CostSample], normaliser: Normaliser) -> "CostData":
        """The samples as tensors; tables of the same features are one, and one whose features differ is several.

        Raises:
            ValueError: there are none.
        """
        if not samples:
            raise ValueError("there are no cost samples, so there is nothing to fit; pass at least one")
        samples = [sample.of_whole_tables() for sample in samples]
        rows = [normaliser(sample.task.tables) for sample in samples]
        vectors = torch.cat([sample.task.tables.vectors for sample in samples]).float()
        distinct, table = torch.cat([torch.cat(rows), vectors[:, None]], dim=1).unique(dim=0, return_inverse=True)
        ratios = torch.nn.functional.pad(distinct[:, -1:], (VECTORS, 0), value=1.0)
        number = torch.arange(len(samples)).repeat_interleave(torch.tensor([len(tables) for tables in rows]))
        device = torch.cat([sample.placement.device for sample in samples])
        assignment = torch.zeros(len(samples), samples[0].task.num_devices, len(distinct))
        assignment.index_put_((number, device, table), torch.ones(()), accumulate=True)
        phases_ms = torch.stack([sample.costs.phases_ms for sample in samples])
        weight = torch.ones(phases_ms.shape[:2])
        return cls(distinct[:, :-1], ratios, assignment, phases_ms, MeasuredOn.of(samples[-1]), weight, 0 * weight)

    def sums(self, encode: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, "S D L"]:
        """Latent sums per device, by `CostNetwork.encode`."""
        return self.assignment @ encode(self.features, self.ratios)


class CostNetwork(nn.Module, ABC):
    """Predicts the cost of placements from features of their tables.

    Attributes:
        table: the network of `encode`.
        max_gradient_norm: to which gradients of the fit are clipped.
        measured_on: origin of the samples that it was fitted to; None before the first fit.
        spread: relative standard error of a device's cost apart from what all devices of a placement have in common; 0 if
            that is not known.
    """

    table: nn.Module
    spread: Tensor
    max_gradient_norm: ClassVar[float] = math.inf
    measured_on: MeasuredOn | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.zeros(()))

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 5"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Latent vector of each table, with a 1 that counts it; as published, the setting of a step has no effect.

        Args:
            normalised: features of the tables.
            ratios: from `work_ratios`, for steps of another setting than the network's, or of other vectors than one per
                sample; None for its own.
        """
        return nn.functional.pad(self.table(normalised), (0, 1), value=1.0)

    def ratios(self, task: PlacementTask, shards: Shards | None = None) -> Float[Tensor, "S 5"] | None:
        """`work_ratios` of a task's tables, or of shards of them; None if the network has their setting too."""
        if self.measured_on is None:
            return None
        fitted = self.measured_on
        batch_size = task.batch_size or fitted.batch_size
        setting = {fitted.precision}, fitted.optimizer, fitted.batch_size
        if setting == (set(task.precisions), task.optimizer, batch_size) and (task.tables.poolings == 1).all():
            return None
        if shards is None:
            shards = Shards.of(task, Placement.whole([0] * len(task.tables), task.num_devices))
        return work_ratios(shards, fitted, batch_size)

    @abstractmethod
    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Milliseconds per device and phase, in the order of `dreamshard.costs.PHASES`."""

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.phases_ms(sums).sum(dim=-1).max(dim=-1).values

    @abstractmethod
    def law(self, num_devices: int) -> DeviceLaw:
        """Costs of devices of whole tables and columns, as arrays for compiled functions."""

    def fit(
        self, data: CostData, optimizer: torch.optim.Optimizer, steps: int, batch: int, generator: torch.Generator
    ) -> float:
        """Learn from samples, for the first time if `measured_on` is None; returns the mean loss.

        Args:
            data: measured placements.
            optimizer: of the parameters.
            steps: of the optimizer.
            batch: draws of `data` per step.
            generator: draws.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        total = 0.0
        for _ in range(steps):
            loss = self.loss(data, batch, generator)
            gradient_step(self, optimizer, loss, "cost network", self.max_gradient_norm)
            total += loss.item()
        return total / steps

    def learn_spread(self, unseen: CostData) -> None:
        """Learn `spread` from placements that it was not fitted to; published networks know none."""

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """The training loss on `batch` draws."""
        raise NotImplementedError

    def knows_topology(self, task: PlacementTask) -> bool:
        """Whether all-to-alls of the task's devices and hosts were measured."""
        return self.measured_on is not None and self.measured_on.shares_hosts_as(task)

    def for_task(self, task: PlacementTask) -> "CostNetwork":
        """This network with the communication of the task's devices and hosts; it shares all weights."""
        return self

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Predicted and measured milliseconds of the slowest device, of those that were seen."""
        predicted_ms = self.phases_ms(data.sums(self.encode)).sum(-1)
        return predicted_ms.where(data.seen, 0.0).max(-1).values, data.overall_ms


def gradient_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: Float[Tensor, ""], what: str, max_norm: float = math.inf
) -> None:
    """Take one optimizer step on the loss of `what`, with the gradient's norm clipped to `max_norm`.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    if not torch.isfinite(loss):
        raise TrainingDivergedError(
            f"the {what}'s loss became {float(loss.detach())}; the last checkpoint is intact: look for extreme cost samples, "
            "or lower the learning rate"
        )
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()


@torch.no_grad()
def prediction_error(network: CostNetwork, data: CostData) -> float:
    """Mean relative error of the overall cost on samples that the network was not fitted to."""
    return mean_relative_error(*network.predicted(data))


def mean_relative_error(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Mean absolute error relative to the measured value (MAPE, as a fraction); NaN for no values."""
    expected = np.asarray(measured, np.float64)
    if not expected.size:
        return math.nan
    return float((np.abs(np.asarray(predicted, np.float64) - expected) / np.maximum(expected, 1e-9)).mean())


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
