"""Cost networks: features of tables, measured placements as tensors, the networks' interface, their fit, and the paper's own.

The first 21 features are DreamShard's (dim, rows, pooling factor, size, 17 access-count bins); the others are logarithms and
figures of reuse. `work_ratios` are the effect of other settings of a step.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each device's
sum into milliseconds. A search and the MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.

`PaperCostNetwork` is DreamShard's (arXiv 2210.02023, section 3.1 and appendix B.1), on its 21 features. As in the authors'
program (`models.py`, `training.py`): ReLU after both layers of the table network, one table of zero features on a device
without tables, and a loss on two independent draws with replacement.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.cost_model.compiled import LEAST, PAPER, DeviceLaw, PaperLaw
from dreamshard.costs import PHASES, CostSample, DeviceCosts, MeasuredOn
from dreamshard.hardware.accelerator import hardware, preset_of
from dreamshard.hardware.roofline import FIRST_BYTES, LOOKUPS_OF_BIN, figures_of, kernels_s, placed_loads
from dreamshard.tables import NUM_BINS, Placement, Tables
from dreamshard.tasks import PlacementTask, Shards

NUM_PAPER_FEATURES = 4 + NUM_BINS
"""Dim, rows, pooling factor, size, and the access-count bins."""
BINS = slice(4, NUM_PAPER_FEATURES)
LOG_DIM, LOG_ROWS, LOG_POOLING, LOG_REUSE, LOG_UNIQUE, HOT = range(6)
"""Positions in `PHYSICAL`; distinct rows are those looked up per sample."""
NUM_FEATURES = NUM_PAPER_FEATURES + 6
PHYSICAL = slice(NUM_PAPER_FEATURES, NUM_FEATURES)
"""Columns of logarithms and of the share of lookups of hot rows."""

NormaliserScope = Literal["pool", "task"]

_RAW = [0, *range(4, NUM_FEATURES)]  # columns that the authors' program leaves as they are: dim and the bins
_HOT_BIN = 6  # rows looked up more than 32 times in a batch

_ALIKE = 16  # tables on a device whose kernels tell what a setting changes: alone, small ones would not fill it

FORWARD, BACKWARD, DISTINCT_ROWS, VECTORS = range(4)
"""Columns of `work_ratios`."""


def features(tables: Tables) -> Float[Tensor, "T F"]:
    """Raw features, the paper's first."""
    dim, rows, pooling, bins = (
        column.double().numpy() for column in (tables.dim, tables.rows, tables.pooling_factor, tables.bins)
    )
    reuse = (tables.lookups.numpy() + 1.0) / (tables.unique_rows.numpy() + 1.0)  # [T] mean lookups per distinct row
    hot = lookups_by_bin(tables.bins.double())[:, _HOT_BIN:].sum(dim=1).numpy()  # [T]
    logs = np.log([dim, rows, pooling + LEAST, reuse, pooling / reuse + LEAST])
    columns = np.concatenate([[dim, rows, pooling, rows * dim], bins.T, logs, [hot]])
    return torch.from_numpy(columns.T.astype(np.float32, order="C"))  # [T, F]


def lookups_by_bin(bins: Float[Tensor, "*B 17"]) -> Float[Tensor, "*B 17"]:
    """Share of a table's lookups in the rows of each bin; 0 without lookups."""
    mass = bins.clamp(min=0) * LOOKUPS_OF_BIN.to(bins.dtype)
    return mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class Normaliser:
    """Mean and standard deviation of each feature, saved with the model.

    Attributes:
        mean: `[F]`.
        std: `[F]`, 1 where a feature is constant.
        scope: `pool` for the statistics of the training pool; `task` where each task is normalised by its own, as in the
            authors' program (`utils.py`: rows, pooling factor and size; dim and bins stay as they are).
    """

    mean: Float[Tensor, " F"]
    std: Float[Tensor, " F"]
    scope: NormaliserScope = "pool"

    @classmethod
    def fit(cls, pool: Tables) -> "Normaliser":
        """Statistics of `pool`."""
        raw = features(pool).double()
        std = raw.std(dim=0, correction=0)
        constant = std < 1e-9 * (1 + raw.mean(dim=0).abs())
        return cls(raw.mean(dim=0).float(), torch.where(constant, 1.0, std).float())

    @classmethod
    def per_task(cls) -> "Normaliser":
        """As in the authors' program."""
        return cls(torch.zeros(NUM_FEATURES), torch.ones(NUM_FEATURES), "task")

    def of_task(self, tables: Tables) -> "Normaliser":
        """The normaliser of a task of these tables, for them and their shards."""
        if self.scope == "pool":
            return self
        normaliser = Normaliser.fit(tables)
        normaliser.mean[_RAW], normaliser.std[_RAW] = 0.0, 1.0
        return normaliser

    def __call__(self, tables: Tables) -> Float[Tensor, "T F"]:
        """Normalised features of any tables, in the pool or not; with the scope `task`, of the tables of one task."""
        normaliser = self.of_task(tables)
        return (features(tables) - normaliser.mean) / normaliser.std


def work_ratios(shards: Shards, fitted: MeasuredOn, batch_size: int) -> Float[Tensor, "S 4"]:
    """How the precision of its weights, the optimizer and the batch size change what each shard does, next to `fitted`.

    A cost network is fitted to steps of one setting. For another one, the work of a shard is scaled by the ratio of what the
    kernels of many such shards take by the roofline, of the fitted hardware's preset or else an A100's. Communication is
    scaled by the ratio of batches, since pooled vectors are always fp32.

    Returns:
        `[S, 4]`: time of the forward and of the backward kernels, bytes of distinct rows, and vectors sent of a
            table, over a vector per sample.
    """
    task = replace(shards.task, precision=fitted.precision, precision_of={}, constraints=UNCONSTRAINED)
    as_fitted = replace(shards, task=replace(task, optimizer=fitted.optimizer))
    spec = preset_of(fitted.hardware) or hardware("a100")
    loads, times = [], []
    for setting, samples in ((shards, batch_size), (as_fitted, fitted.batch_size)):
        loads.append(placed_loads(setting, samples))
        times.append(torch.from_numpy(kernels_s(figures_of(spec, samples), _ALIKE * loads[-1].numpy())))
    distinct = loads[0][:, FIRST_BYTES] / loads[1][:, FIRST_BYTES].clamp(min=1e-9)
    vectors = shards.tables.vectors * (batch_size / fitted.batch_size)
    kernels = times[0] / times[1].clamp(min=1e-12)
    return torch.cat([kernels, torch.stack([distinct, vectors], dim=1)], dim=1).float()


COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


class TrainingDivergedError(RuntimeError):
    """A loss is not finite; the last checkpoint is intact."""


@dataclass(frozen=True)
class CostData:
    """Measured placements on the same devices and hosts, in the same setting.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        ratios: `[P, 4]` of `work_ratios`: their vectors, and 1 otherwise.
        assignment: `[S, D, P]` number of tables `p` on device `d` of sample `s`.
        phases_ms: `[S, D, 4]` measured; NaN for devices that were not seen.
        measured_on: origin of the newest sample.
        weight: `[S, D]` measurements that a device of a sample counts as.
        error: `[S, D]` relative standard error besides that of measurements; of what a preset says instead of a measurement.
    """

    features: Float[Tensor, "P F"]
    ratios: Float[Tensor, "P 4"]
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
        ratios = nn.functional.pad(distinct[:, -1:], (VECTORS, 0), value=1.0)
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
        relative_error: standard error of a device's cost apart from what all devices of a placement have in common; 0 if
            that is not known.
    """

    table: nn.Module
    relative_error: Tensor
    max_gradient_norm: ClassVar[float] = math.inf
    measured_on: MeasuredOn | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("relative_error", torch.zeros(()))

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Latent vector of each table, with a 1 that counts it; as published, the setting of a step has no effect.

        Args:
            normalised: features of the tables.
            ratios: from `work_ratios`, for steps of another setting than the network's, or of other vectors than one per
                sample; None for its own.
        """
        return nn.functional.pad(self.table(normalised), (0, 1), value=1.0)

    def ratios(self, task: PlacementTask, shards: Shards | None = None) -> Float[Tensor, "S 4"] | None:
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

    def learn_relative_error(self, unseen: CostData) -> None:
        """Learn `relative_error` from placements that it was not fitted to; published networks know none."""

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


LATENT = 32
_HIDDEN, _HEAD = 128, 64


class TableNetwork(nn.Module):
    """The paper's table network, whose latents are summed over a device's tables; cost network and policy have one each.

    A device without tables gets the latent of zero features, which the authors' program passes through the network in its
    place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp(NUM_PAPER_FEATURES, _HIDDEN, LATENT), nn.ReLU())

    def forward(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table."""
        return self.layers(normalised[..., :NUM_PAPER_FEATURES])

    def of_devices(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B L2"]:
        """Latents of devices from the sums over their tables."""
        return torch.where(sums[..., -1:] > 0.5, sums[..., :-1], self.empty())

    def empty(self) -> Float[Tensor, " L2"]:
        """The latent of a device without tables."""
        return self.forward(torch.zeros(NUM_PAPER_FEATURES))


def heads_law(heads: Sequence[nn.Module], empty: Float[Tensor, " L"], unit_ms: float = 1.0) -> DeviceLaw:
    """The law of heads 32-64-1 on a device's latent; `empty` is the latent of a device without tables."""

    def of(layer: int, name: str) -> list[Tensor]:
        return [head.get_parameter(f"{layer}.{name}").double() for head in heads]

    paper = PaperLaw(
        hidden_weight=torch.cat(of(0, "weight")).T.contiguous().numpy(),
        hidden_bias=torch.cat(of(0, "bias")).numpy(),
        output_weight=unit_ms * torch.block_diag(*of(2, "weight")).T.contiguous().numpy(),
        output_bias=unit_ms * torch.cat(of(2, "bias")).numpy(),
        empty=empty.detach().double().numpy(),
    )
    return DeviceLaw(PAPER, width=LATENT, tables=LATENT, paper=paper)


class PaperCostNetwork(CostNetwork):
    """Table MLP 21-128-32, sum, heads 32-64-1; max over devices of the sums, then 32-64-1 for the overall cost.

    The paper predicts no forward communication (its measurement contains the waiting for other devices); here both
    directions move the same bytes, so the one communication head stands for both.
    """

    table: TableNetwork

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.heads = nn.ModuleList(mlp(LATENT, _HEAD, 1) for _ in range(3))
        self.overall = mlp(LATENT, _HEAD, 1)

    def heads_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 3"]:
        """Forward compute, backward communication and backward compute of each device."""
        latents = self.table.of_devices(sums)
        return torch.cat([head(latents) for head in self.heads], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """See `CostNetwork`."""
        return self.heads_ms(sums)[..., [0, 1, 1, 2]]

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The overall head on the largest latents."""
        return self.overall(self.table.of_devices(sums).max(dim=-2).values).squeeze(-1)

    @torch.no_grad()
    def law(self, num_devices: int) -> DeviceLaw:
        """The heads of a device."""
        forward, communication, backward = self.heads
        return heads_law([forward, backward, communication], self.table.empty())

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Squared errors of the overall cost of drawn placements, and of each head on single devices, summed."""
        latents, sums = self.encode(data.features), data.assignment  # [P, L], [S, D, P]
        placements = torch.randint(len(sums), (batch,), generator=generator)
        devices = torch.randint(sums[..., 0].numel(), (batch,), generator=generator)  # sample x D + device
        predicted_ms = self.heads_ms(sums.flatten(0, 1)[devices] @ latents)
        heads = (predicted_ms - data.phases_ms.flatten(0, 1)[devices][:, [0, 2, 3]]).square().mean(dim=0).sum()
        overall_ms = self.overall_ms(sums[placements] @ latents)
        return heads + (overall_ms - data.overall_ms[placements]).square().mean()
