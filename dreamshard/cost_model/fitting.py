"""Fit a cost network to measured placements.

The tables of all samples are encoded once per step; a shard's sum is then one matrix product with the assignment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from dreamshard.cost_model.analytic_gradient import HUBER, LOSS_SCALE, StructuredFit, error_scale, fit_data
from dreamshard.cost_model.features import Normaliser, features
from dreamshard.cost_model.networks import CostNetwork, PaperCostNetwork, StructuredCostNetwork
from dreamshard.costs import CostSample


class TrainingDivergedError(RuntimeError):
    """A loss stopped being a number; the last checkpoint is intact."""


@dataclass(frozen=True)
class CostData:
    """Measured placements of equally many devices, ready to be fitted.

    Attributes:
        features: `[P, F]` of the `P` distinct tables that occur.
        assignment: `[S, D, P]` one where sample `s` has table `p` on device `d`.
        phases_ms: `[S, D, 4]` measured.
        task_names: `S` names, to compare placements of one task with each other.
    """

    features: Float[Tensor, "P F"]
    assignment: Float[Tensor, "S D P"]
    phases_ms: Float[Tensor, "S D 4"]
    task_names: tuple[str, ...]

    @property
    def overall_ms(self) -> Float[Tensor, " S"]:
        """`[S]` the slowest device's sum."""
        return self.phases_ms.sum(-1).max(-1).values

    @classmethod
    def of(cls, samples: Sequence[CostSample], normaliser: Normaliser) -> "CostData":
        """The samples as tensors; a table that has changed between two samples is two tables.

        Raises:
            ValueError: there are none, or they differ in their number of devices.
        """
        counts = {sample.task.num_devices for sample in samples}
        if len(counts) != 1:
            raise ValueError(
                f"cost samples of {sorted(counts)} devices cannot be fitted together; "
                "pass the samples of one number of devices (and at least one sample)"
            )
        position: dict[tuple[str, bytes], int] = {}
        first_seen: list[Float[Tensor, "P F"]] = []
        columns = []
        for sample in samples:
            raw = features(sample.task.tables)
            tables = list(zip(sample.task.tables.names, (row.tobytes() for row in raw.numpy()), strict=True))
            fresh = [t for t, table in enumerate(tables) if table not in position]
            position.update({tables[t]: len(position) + i for i, t in enumerate(fresh)})
            first_seen.append(raw[fresh])
            columns.append(torch.tensor([position[table] for table in tables]))
        assignment = torch.zeros(len(samples), counts.pop(), len(position))
        for s, sample in enumerate(samples):
            assignment[s, sample.placement.device, columns[s]] = 1.0
        return cls(
            normaliser.normalised(torch.cat(first_seen)),
            assignment,
            torch.stack([sample.costs.phases_ms() for sample in samples]).float(),
            tuple(sample.task.name for sample in samples),
        )

    def sums(self, network: CostNetwork, chosen: Int[Tensor, " B"] | None = None) -> Float[Tensor, "B D L"]:
        """Latent sums of the chosen samples, or of all."""
        assignment = self.assignment if chosen is None else self.assignment[chosen]
        return assignment @ network.encode(self.features)


@dataclass(frozen=True)
class PredictionError:
    """How well a network predicts samples it was not fitted to.

    Attributes:
        mape: mean absolute relative error of the overall cost.
        spearman: mean rank correlation of the overall cost within a task, over the tasks with at least 3 placements;
            where there are none, over all samples.
    """

    mape: float
    spearman: float


def loss(network: CostNetwork, data: CostData, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """What fitting minimises: the paper's squared errors, or relative ones for the structured network.

    Relative: every phase's error counts in proportion to its device's cost, so that milliseconds nobody waits for do
    not govern; a device cheaper than a fifth of the slowest counts as that.
    """
    sums, measured = data.sums(network, chosen), data.phases_ms[chosen]
    if isinstance(network, PaperCostNetwork):
        heads = (network.phases_ms(sums) - measured)[..., [0, 2, 3]].square().mean()
        return heads + (network.overall_ms(sums) - data.overall_ms[chosen]).square().mean()
    assert isinstance(network, StructuredCostNetwork)
    predicted = network.member_phases_ms(sums)  # [B, D, M, 4]
    error = (predicted - measured[:, :, None, :]) / error_scale(measured)[:, :, None, None]
    total = error.sum(-1)  # [B, D, M]
    zero = torch.zeros(())
    each = torch.nn.functional.smooth_l1_loss(error, zero.expand_as(error), beta=HUBER)
    return LOSS_SCALE * (each + torch.nn.functional.smooth_l1_loss(total, zero.expand_as(total), beta=HUBER))


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
    if isinstance(network, StructuredCostNetwork):
        total = _fit_structured(network, optimizer, data, batches)
    else:
        total = _fit_by_autograd(network, optimizer, data, batches)
    mean = total / max(steps, 1)
    if not math.isfinite(total):
        raise TrainingDivergedError(
            f"the cost network's loss became {mean} within {steps} steps, so its predictions are worthless; "
            "the last checkpoint is intact: look for extreme cost samples, or lower the learning rate"
        )
    return mean


def _fit_by_autograd(
    network: CostNetwork, optimizer: torch.optim.Optimizer, data: CostData, batches: Sequence[Int[Tensor, " B"]]
) -> float:
    """Sum of the losses."""
    total = torch.zeros(())
    for chosen in batches:
        value = loss(network, data, chosen)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        optimizer.step()
        total += value.detach()
    return float(total)


def _fit_structured(
    network: StructuredCostNetwork,
    optimizer: torch.optim.Optimizer,
    data: CostData,
    batches: Sequence[Int[Tensor, " B"]],
) -> float:
    """Sum of the losses; the same steps with the gradient by hand."""
    prepared = fit_data(network, data.features, data.assignment, data.phases_ms)
    fitting = StructuredFit(network)
    adam = fitting.adam(optimizer)
    total = 0.0
    for chosen in batches:
        total += fitting.gradient(prepared, chosen.numpy())
        adam.step()
    fitting.write_back()
    adam.write_back()
    return total


@torch.no_grad()
def prediction_error(network: CostNetwork, data: CostData) -> PredictionError:
    """Error of the overall cost on `data`."""
    predicted, measured = network.overall_ms(data.sums(network)), data.overall_ms
    mape = float(((predicted - measured).abs() / measured.clamp(min=1e-9)).mean())
    members: dict[str, list[int]] = {}
    for s, name in enumerate(data.task_names):
        members.setdefault(name, []).append(s)
    groups = [group for group in members.values() if len(group) > 2] or [list(range(len(data.task_names)))]
    return PredictionError(mape, sum(_spearman(predicted[g], measured[g]) for g in groups) / len(groups))


def _spearman(a: Float[Tensor, " S"], b: Float[Tensor, " S"]) -> float:
    """Rank correlation; 0 where one side is constant or there is nothing to rank."""
    if len(a) < 2 or bool((a == a[0]).all()) or bool((b == b[0]).all()):
        return 0.0
    return float(stats.spearmanr(a.numpy(), b.numpy()).statistic)
