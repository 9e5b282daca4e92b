"""Cost networks: their interface, their fit, and their error.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each device's
sum into milliseconds. A search and the MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dreamshard.cost_model.compiled import DeviceLaw
from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.features import Normaliser, work_ratios
from dreamshard.costs import ExchangeSample
from dreamshard.measured_on import MeasuredOn
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

_LEAST_MEASURED = 1e-9  # keeps the relative error of a cost of 0 finite


class TrainingDivergedError(RuntimeError):
    """A loss is not finite; the last checkpoint is intact."""


@dataclass(frozen=True)
class PredictionError:
    """Errors of a network on samples that it was not fitted to.

    Attributes:
        mape: mean absolute relative error of the overall cost.
        spearman: mean rank correlation of the overall cost within a task, over the tasks with at least 3 placements;
            over all samples if there is no such task.
    """

    mape: float
    spearman: float


class CostNetwork(nn.Module, ABC):
    """Predicts the cost of placements from features of their tables.

    Attributes:
        latent_size: `L`.
        max_gradient_norm: to which gradients of the fit are clipped.
        measured_on: origin of the samples that it was fitted to; None before the first fit.
    """

    latent_size: int
    max_gradient_norm: ClassVar[float] = math.inf
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

    def ratios(self, task: PlacementTask, tables: Tables | None = None) -> Float[Tensor, "T 4"] | None:
        """`work_ratios` of a task's tables, or of other ones in its setting; None if the network has that setting too."""
        if self.measured_on is None:
            return None
        fitted = self.measured_on.setting
        batch_size = task.batch_size or fitted.batch_size
        wanted = replace(fitted, precision=task.precision, optimizer=task.optimizer, batch_size=batch_size)
        return None if wanted == fitted else work_ratios(tables or task.tables, fitted, wanted)

    @abstractmethod
    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Milliseconds per device and phase, in the order of `dreamshard.costs.PHASES`."""

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.phases_ms(sums).sum(dim=-1).max(dim=-1).values

    def law(self, num_devices: int) -> DeviceLaw:
        """Costs of devices of whole tables and columns, as arrays for compiled functions.

        Raises:
            NotImplementedError: the network has no compiled form.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compiled form")

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
            optimizer: of the parameters; its steps are those of a fit by gradients, each on `batch` draws of `data`.
            steps: of the optimizer.
            batch: draws per step.
            generator: draws.
            first: whether the network is untrained.

        Raises:
            TrainingDivergedError: the loss is not finite.
            ValueError: samples differ in their devices, and the network serves one number of devices at a time.
        """
        fitted, total = self.prepare(data, first=first), 0.0
        for _ in range(steps):
            loss = self.loss(fitted, self.draw(data, batch, generator))
            gradient_step(self, optimizer, loss, "cost network", self.max_gradient_norm)
            total += float(loss.detach())
        return total / max(steps, 1)

    def prepare(self, data: CostData, *, first: bool) -> Any:
        """What `loss` takes of the samples; called before each fit, with `first` before that of an untrained network."""
        self._check_one_layout(data)
        return data

    def draw(self, data: CostData, batch: int, generator: torch.Generator) -> Int[Tensor, "..."]:
        """What one step of the fit uses, in the form that `loss` takes."""
        raise NotImplementedError

    def loss(self, data: Any, chosen: Int[Tensor, "..."]) -> Float[Tensor, ""]:
        """The training loss on what `draw` chose of what `prepare` returned."""
        raise NotImplementedError

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Take the cost of all-to-alls alone from samples of one hardware; ignored by a network that cannot."""

    def knows_topology(self, task: PlacementTask) -> bool:
        """Whether all-to-alls of the task's devices and hosts were measured."""
        return self.measured_on is not None and self.measured_on.shares_hosts_as(task)

    def for_task(self, task: PlacementTask) -> "CostNetwork":
        """This network with the communication of the task's devices and hosts; it shares all weights."""
        return self

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], tuple[str, ...]]:
        """Predicted and measured milliseconds of the overall cost, and the task of each; raises like `fit`."""
        self._check_one_layout(data)
        return self.overall_ms(data.sums(self.encode)), data.overall_ms, data.task_names

    def _check_one_layout(self, data: CostData) -> None:
        layouts = data.by_layout()
        if len(layouts) > 1:
            raise ValueError(
                f"the paper's network cannot use cost samples of several layouts (devices, devices per host): "
                f"{sorted(layouts, key=str)}; pass the samples of one, or train the algorithm dreamshard"
            )


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
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    if math.isfinite(max_norm):
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()


@torch.no_grad()
def prediction_error(network: CostNetwork, data: CostData) -> PredictionError:
    """Error of the overall cost on `data`; a rank correlation that is not defined counts as 0."""
    predicted, measured, names = network.predicted(data)
    ranks = rank_correlations(predicted, measured, names) or [_rank_correlation(predicted, measured)]
    defined = [0.0 if math.isnan(rank) else rank for rank in ranks]
    return PredictionError(mean_relative_error(predicted, measured), sum(defined) / len(defined))


def mean_relative_error(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Mean absolute error relative to the measured value (MAPE, as a fraction); NaN for no values."""
    expected = np.asarray(measured, np.float64)
    if expected.size == 0:
        return math.nan
    errors = np.abs(np.asarray(predicted, np.float64) - expected) / np.maximum(expected, _LEAST_MEASURED)
    return float(errors.mean())


def rank_correlations(predicted: ArrayLike, measured: ArrayLike, names: Sequence[Hashable]) -> list[float]:
    """Spearman's among the values of each name that has at least 3, since ranks of fewer mean little; NaN for constants."""
    groups: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name, []).append(index)
    sides = np.asarray(predicted), np.asarray(measured)
    return [_rank_correlation(*(side[group] for side in sides)) for group in groups.values() if len(group) > 2]


def _rank_correlation(*sides: ArrayLike) -> float:
    if any(np.unique(np.asarray(side)).size < 2 for side in sides):
        return math.nan
    return float(scipy.stats.spearmanr(*sides).statistic)


def shard_sums(latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D L"]:
    """Latents summed over each device's tables."""
    sums = latents.new_zeros(device.shape[0], num_devices, latents.shape[1])
    index = device[:, :, None].expand(-1, -1, latents.shape[1])
    return sums.scatter_add_(1, index, latents.expand(device.shape[0], -1, -1))


def shard_latents(
    network: CostNetwork, normaliser: Normaliser, task: PlacementTask, whole: Tables
) -> Float[Tensor, "T L"]:
    """Latents of the tables, or of the column shards, of a task of these whole tables."""
    return network.encode(normaliser.of_task(whole)(task.tables), network.ratios(task))


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def take_shapes(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Give tensors the shapes of the state that is about to be loaded, whose sizes are what was learned."""
    for name, own in [*module.named_buffers(recurse=False), *module.named_parameters(recurse=False)]:
        own.data = torch.empty_like(state_dict.get(prefix + name, own))
