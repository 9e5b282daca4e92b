"""Cost networks: measured placements as tensors, the networks' interface, their fit, and their error.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each device's
sum into milliseconds. A search and the MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dreamshard.cost_model.compiled import DeviceLaw
from dreamshard.cost_model.features import Normaliser, work_ratios
from dreamshard.costs import PHASES, CostSample, ExchangeSample, MeasuredOn, StepSetting
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]

Layout = tuple[int, int | None]
"""Devices of a task, and devices per host; None for as many as the hardware has."""


class TrainingDivergedError(RuntimeError):
    """A loss is not finite; the last checkpoint is intact."""


@dataclass(frozen=True)
class CostData:
    """Measured placements; on fewer than `D` devices they end in devices without tables, of cost 0.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        assignment: `[S, D, P]` 1 if sample `s` has table `p` on device `d`.
        phases_ms: `[S, D, 4]` measured.
        layouts: of the samples' tasks.
        ratios: `[P, 4]` `work_ratios` of the tables; None if all samples have the network's setting.
        batch_size: training samples per pass, of the network's setting.
    """

    features: Float[Tensor, "P F"]
    assignment: Float[Tensor, "S D P"]
    phases_ms: Float[Tensor, "S D 4"]
    layouts: tuple[Layout, ...]
    ratios: Float[Tensor, "P 4"] | None
    batch_size: int

    @property
    def overall_ms(self) -> Float[Tensor, " S"]:
        """`[S]` the slowest device's sum."""
        return self.phases_ms.sum(-1).max(-1).values

    @cached_property
    def holding(self) -> Int[Tensor, " N"]:
        """Numbers `sample x D + device` of the devices with tables."""
        return self.assignment.flatten(0, 1).any(dim=1).nonzero()[:, 0]

    def by_layout(self) -> dict[Layout, Int[Tensor, " N"]]:
        """Samples of each layout, the layout with the most samples first."""
        return {
            layout: torch.tensor([s for s, own in enumerate(self.layouts) if own == layout])
            for layout, _ in Counter(self.layouts).most_common()
        }

    @classmethod
    def of(cls, samples: Sequence[CostSample], normaliser: Normaliser, fitted: StepSetting | None = None) -> "CostData":
        """The samples as tensors; a table whose features differ between two samples is two tables.

        Args:
            samples: placements on any devices.
            normaliser: of the features.
            fitted: setting of the network's steps; samples of another one get `work_ratios`. None for the samples' own.

        Raises:
            ValueError: there are none.
        """
        if not samples:
            raise ValueError("there are no cost samples, so there is nothing to fit; pass at least one")
        samples = [sample.of_whole_tables() for sample in samples]
        tables: dict[tuple[str, bytes], tuple[int, NDArray[np.float32]]] = {}
        columns = [
            [
                tables.setdefault((name, row.tobytes()), (len(tables), row))[0]
                for name, row in zip(sample.task.tables.names, _rows(sample, normaliser, fitted), strict=True)
            ]
            for sample in samples
        ]
        most = max(sample.task.num_devices for sample in samples)
        assignment = torch.zeros(len(samples), most, len(tables))
        phases_ms = torch.zeros(len(samples), most, len(PHASES))
        for s, sample in enumerate(samples):
            assignment[s, sample.placement.device, columns[s]] = 1.0
            phases_ms[s, : sample.task.num_devices] = sample.costs.phases_ms()
        rows = torch.from_numpy(np.stack([row for _, row in tables.values()]))
        features, ratios = (part.contiguous() for part in rows.split([len(normaliser.mean), 4], dim=1))
        return cls(
            features,
            assignment,
            phases_ms,
            tuple((sample.task.num_devices, sample.task.devices_per_host) for sample in samples),
            None if bool((ratios == 1).all()) else ratios,
            fitted.batch_size if fitted else samples[0].batch_size,
        )

    def sums(self, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Float[Tensor, "S D L"]:
        """Latent sums per device, by `CostNetwork.encode`."""
        return self.assignment @ encode(self.features, self.ratios)


def _rows(sample: CostSample, normaliser: Normaliser, fitted: StepSetting | None) -> NDArray[np.float32]:
    """`[T, F+4]` normalised features and `work_ratios` of the sample's tables."""
    tables, setting = sample.task.tables, MeasuredOn.of(sample).setting
    ratios = torch.ones(len(tables), 4) if fitted is None or fitted == setting else work_ratios(tables, fitted, setting)
    return torch.cat([normaliser(tables), ratios], dim=1).numpy()


class CostNetwork(nn.Module, ABC):
    """Predicts the cost of placements from features of their tables.

    Attributes:
        table: the network of `encode`.
        max_gradient_norm: to which gradients of the fit are clipped.
        measured_on: origin of the samples that it was fitted to; None before the first fit.
    """

    table: nn.Module
    max_gradient_norm: ClassVar[float] = math.inf
    measured_on: MeasuredOn | None = None

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Latent vector of each table; as published, precision, optimizer and batch size have no effect.

        Args:
            normalised: features of the tables.
            ratios: from `work_ratios`, for steps of another setting than the network's; None for its own.
        """
        latent: Tensor = self.table(normalised)
        return latent

    def ratios(self, task: PlacementTask, tables: Tables | None = None) -> Float[Tensor, "T 4"] | None:
        """`work_ratios` of a task's tables, or of other ones in its setting; None if the network has that setting too."""
        if self.measured_on is None:
            return None
        fitted = self.measured_on.setting
        wanted = StepSetting(
            precision=task.precision, optimizer=task.optimizer, batch_size=task.batch_size or fitted.batch_size
        )
        return None if wanted == fitted else work_ratios(tables or task.tables, fitted, wanted)

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
        self,
        data: CostData,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int,
        batch: int,
        generator: torch.Generator,
        first: bool,
    ) -> float:
        """Learn from samples; returns the mean loss.

        Args:
            data: measured placements.
            optimizer: of the parameters.
            steps: of the optimizer.
            batch: draws of `data` per step.
            generator: draws.
            first: whether the network is untrained.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        total = 0.0
        for _ in range(steps):
            loss = self.loss(data, batch, generator)
            gradient_step(self, optimizer, loss, "cost network", self.max_gradient_norm)
            total += float(loss.detach())
        return total / max(steps, 1)

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """The training loss on `batch` draws."""
        raise NotImplementedError

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Take the cost of all-to-alls alone from samples of one hardware; ignored by a network that cannot."""

    def knows_topology(self, task: PlacementTask) -> bool:
        """Whether all-to-alls of the task's devices and hosts were measured."""
        return self.measured_on is not None and self.measured_on.shares_hosts_as(task)

    def for_task(self, task: PlacementTask) -> "CostNetwork":
        """This network with the communication of the task's devices and hosts; it shares all weights."""
        return self

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Predicted and measured milliseconds of the overall cost."""
        return self.overall_ms(data.sums(self.encode)), data.overall_ms


def gradient_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Float[Tensor, ""],
    what: str,
    max_norm: float = math.inf,
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
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    if math.isfinite(max_norm):
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()


@torch.no_grad()
def prediction_error(network: CostNetwork, data: CostData) -> float:
    """Mean relative error of the overall cost on samples that the network was not fitted to."""
    return mean_relative_error(*network.predicted(data))


def mean_relative_error(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Mean absolute error relative to the measured value (MAPE, as a fraction); NaN for no values."""
    expected = np.asarray(measured, np.float64)
    if expected.size == 0:
        return math.nan
    return float((np.abs(np.asarray(predicted, np.float64) - expected) / np.maximum(expected, 1e-9)).mean())


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
