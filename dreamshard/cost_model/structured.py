"""The structured cost network: positive work per table and phase, summed, times a bounded correction for fusion."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import structured_formula as formula
from dreamshard.cost_model.compiled import CURVE_POINTS, DeviceLaw, network_law
from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import CostNetwork
from dreamshard.cost_model.exchange_model import ExchangeModel
from dreamshard.cost_model.features import FEATURES, PHYSICAL_FEATURES, Normaliser
from dreamshard.cost_model.structured_formula import LatentLayout, StructuredWeights
from dreamshard.cost_model.work_ratios import BACKWARD, BATCH, DISTINCT, FORWARD
from dreamshard.costs import ExchangeSample
from dreamshard.tasks import PlacementTask

_COLUMNS = [FEATURES.index(name) for name in PHYSICAL_FEATURES]  # that it sees
_COMPUTE = [0, 3]  # of PHASES: forward_compute, backward_compute
_HUBER = 0.05  # relative error above which the loss grows linearly
_LOSS_SCALE = 10.0
_COMM = [1, 2]  # of PHASES: forward_comm, backward_comm
_OUTLIER = 2.5  # medians of the absolute error, above which a sample counts less


@dataclass(frozen=True)
class _FitData:
    """What is constant during a fit, once communication is fitted.

    Errors are relative to the device's cost, at least a fifth of the slowest's, so that idle ones count little.

    Attributes:
        inputs: the exponent of a table's work is linear in them.
        raw_work: of each table before the exponent; of each pair if these differ.
        samples: for each sample and device, 1 for the tables that it has; inputs of the correction that all pairs share; and
            relative errors: per unit of forward and backward compute, of no compute, and of communication.
    """

    inputs: Float[Tensor, "P Z"]
    raw_work: Float[Tensor, "P _"]
    samples: Float[Tensor, "S D _"]


class StructuredCostNetwork(CostNetwork):
    """An ensemble of `members` structured predictors, evaluated together; the prediction is their mean.

    Compute, per phase: each table does work `pooling x dim x exp(linear(log dim, log rows, log pooling, their squares,
    reuse))`; a device costs `launch + sum of work x exp(correction)`. A small net bounded to +-1.5 gives the correction
    from the logarithm of the sum, its concentration on few tables, the number of tables, lookups and distinct bytes, and
    whether a table is wider than 32 and than 64: the fused operator gives every row as many threads as the widest needs,
    so narrow tables cost more beside a wide one. The weights of wide tables begin at 0, so that they have no effect
    before a sample has shown one. Communication, the same for all members: linear in `formula.comm_inputs`, with the
    weights `comm_ms` of the placements that it was fitted to; `for_task` has those of any task's devices and hosts.
    """

    mean: Tensor
    std: Tensor
    scale_ms: Tensor
    comm_ms: Tensor

    def __init__(self, normaliser: Normaliser, members: int = 4, hidden: int = 16) -> None:
        super().__init__()
        self.members, self.hidden = members, hidden
        self.layout = LatentLayout(members)
        self.latent_size = self.layout.size
        self.register_buffer("mean", normaliser.mean[_COLUMNS].clone())  # [Z] to undo the normalisation
        self.register_buffer("std", normaliser.std[_COLUMNS].clone())
        self.log_scale = nn.Parameter(torch.zeros(members, 2))
        self.slope = nn.Parameter(0.01 * torch.randn(members, 2, len(_COLUMNS) + 3))
        self.launch = nn.Parameter(torch.full((members, 2), -4.0))
        drawn = torch.randn(members, 2, formula.CORRECTION_INPUTS - len(formula.WIDE_DIMS), hidden) / math.sqrt(6)
        of_wide = torch.zeros(members, 2, len(formula.WIDE_DIMS), hidden)
        self.hidden_weight = nn.Parameter(torch.cat([drawn, of_wide], dim=2))
        self.hidden_bias = nn.Parameter(0.1 * torch.randn(members, 2, hidden))
        self.output_weight = nn.Parameter(0.01 * torch.randn(members, 2, hidden))
        self.register_buffer("comm_ms", torch.zeros(2, 4))
        self.register_buffer("scale_ms", torch.ones(2))
        self.exchanges = ExchangeModel()
        self.task_comm_ms: Tensor | None = None  # instead of `comm_ms`, in a copy for one task

    def weights(self) -> StructuredWeights:
        """The weights by pair, as views of the parameters."""
        parameters = (self.launch, self.hidden_weight, self.hidden_bias, self.output_weight)
        launch, weight, bias, output = (parameter.flatten(0, 1) for parameter in parameters)
        comm_ms = self.comm_ms if self.task_comm_ms is None else self.task_comm_ms
        return StructuredWeights(self.layout, launch, weight, bias, output, self.scale_ms, comm_ms)

    def work_inputs(self, normalised: Float[Tensor, "*B F"]) -> tuple[Float[Tensor, "*B Z"], Float[Tensor, "*B"]]:
        """Inputs that the exponent of a table's work is linear in, and its work before it (hundreds of pooled weights)."""
        z, logs = normalised[..., _COLUMNS], self._logs(normalised)
        return torch.cat([z, 0.3 * z[..., :3].square()], dim=-1), (logs[..., 0] + logs[..., 2]).exp() / 100

    def _logs(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B Z"]:
        return normalised[..., _COLUMNS] * self.std + self.mean

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Columns of `LatentLayout`."""
        inputs, raw_work = self.work_inputs(normalised)
        work = self._work(inputs, self._by_pair(raw_work, ratios))  # [*B, 2M]
        dim, _rows, pooling, _reuse, unique, _hot = self._logs(normalised).unbind(-1)
        wide = (dim.unsqueeze(-1) > torch.tensor(formula.WIDE_DIMS).log()).to(dim.dtype)  # [*B, 2]
        shared = torch.stack([(dim + unique).exp() / 100, dim.exp() / 100, pooling.exp() / 10], dim=-1)
        if ratios is not None:
            shared = shared * ratios[..., [DISTINCT, BATCH, BATCH]]
        return torch.cat([work, work.square(), wide, shared, torch.ones_like(shared[..., :1])], dim=-1)

    def _by_pair(self, raw_work: Float[Tensor, "*B"], ratios: Float[Tensor, "*B 4"] | None) -> Float[Tensor, "*B _"]:
        """The same for all pairs unless there are ratios."""
        if ratios is None:
            return raw_work[..., None]
        return raw_work[..., None] * ratios[..., [FORWARD, BACKWARD] * self.members]

    def _work(self, inputs: Float[Tensor, "*B Z"], raw_work: Float[Tensor, "*B _"]) -> Float[Tensor, "*B M2"]:
        exponent = inputs @ self.slope.flatten(0, 1).T + self.log_scale.flatten()
        return raw_work * exponent.clamp(formula.LEAST_EXPONENT, formula.MOST_EXPONENT).exp()

    def _compute(
        self, work: Float[Tensor, "M2 N"], square: Float[Tensor, "M2 N"], shared: Float[Tensor, "6 N"]
    ) -> Float[Tensor, "M2 N"]:
        """Of devices with tables in units of `scale_ms`, from their summed work and squared work."""
        weights = self.weights()
        own = torch.stack([formula.work_input(work), formula.concentration_input(work, square)], dim=1)  # [2M, 2, N]
        own_weight, shared_weight = weights.hidden_weight.split([own.shape[1], len(shared)], dim=1)
        shared_weight = shared_weight.mT.flatten(0, 1)  # [2M H, 6]
        hidden = torch.addmm(weights.hidden_bias.reshape(-1, 1), shared_weight, shared).view(len(work), self.hidden, -1)
        hidden = torch.baddbmm(hidden, own_weight.mT, own).relu()  # [2M, H, N]
        output = torch.bmm(weights.output_weight[:, None, :], hidden).squeeze(1) / formula.BOUND
        launch = nn.functional.softplus(weights.launch)[:, None]
        return launch + work * (formula.BOUND * output.tanh()).exp()

    def member_phases_ms(
        self, sums: Float[Tensor, "*B D L"], comm_ms: Float[Tensor, "*B D 2"] | None = None
    ) -> Float[Tensor, "*B D M 4"]:
        """Milliseconds as each member predicts them; communication as given, else by `comm_ms` of the network."""
        layout, batch = self.layout, sums.shape[:-1]
        flat = sums.reshape(-1, layout.size)  # [N, L]
        work, square, shared = flat[:, layout.work].T, flat[:, layout.squares].T, formula.shared_inputs(flat).T
        compute = self._compute(work, square, shared) * (flat[:, layout.count] > formula.ONE_TABLE)  # [2M, N]
        compute = compute.T.reshape(*batch, self.members, 2) * self.scale_ms  # [*B, D, M, 2]
        if comm_ms is None:
            comm_ms = formula.comm_inputs(sums[..., layout.dims]) @ self.weights().comm_ms.T  # [*B, D, 2]
        comm = comm_ms.unsqueeze(-2).expand(*batch, self.members, 2)
        return torch.cat([compute[..., :1], comm, compute[..., 1:]], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """The mean over the members."""
        return self.member_phases_ms(sums).mean(dim=-2)

    def loss(self, data: _FitData, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Huber's loss of the relative errors of compute by phase, and of the whole cost, over all members."""
        samples = data.samples.index_select(0, chosen).flatten(0, 1)  # [N, _]
        assignment, shared, per_unit, idle_error, comm_error = samples.split([len(data.inputs), 6, 2, 2, 1], dim=1)
        work = self._work(data.inputs, data.raw_work)  # [P, 2M]
        total, square = (assignment @ torch.cat([work, work.square()], dim=1)).T.chunk(2)  # [2M, N]
        compute = self._compute(total, square, shared.T).view(self.members, 2, -1)  # [M, 2, N]
        error = torch.addcmul(idle_error.T, compute, per_unit.T)
        return _LOSS_SCALE * (_huber(error) / 2 + _huber(error.sum(dim=1) + comm_error.T))

    @torch.no_grad()
    def law(self, num_devices: int) -> DeviceLaw:
        return network_law(self.weights(), num_devices, np.zeros((4, CURVE_POINTS)))

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        self.exchanges.learn_exchanges(samples)

    def knows_topology(self, task: PlacementTask) -> bool:
        shape = self.exchanges.topology(task.num_devices, task.devices_per_host)
        return self.exchanges.knows(shape) or super().knows_topology(task)

    def for_task(self, task: PlacementTask) -> "StructuredCostNetwork":
        shape = self.exchanges.topology(task.num_devices, task.devices_per_host)
        batches = (
            task.batch_size / int(self.exchanges.batch_size) if task.batch_size and self.exchanges.batch_size else 1.0
        )
        weights = self.exchanges.weights_ms(shape, batches * float(task.tables.dim.sum()))
        if weights is None:
            return self
        network = copy(self)
        network.task_comm_ms = weights
        return network

    @torch.no_grad()
    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], tuple[str, ...]]:
        sums = data.sums(self.encode)
        phases_ms = self.member_phases_ms(sums, self._data_comm_ms(data, sums[..., self.layout.dims])).mean(dim=-2)
        return phases_ms.sum(dim=-1).max(dim=-1).values, data.overall_ms, data.task_names

    def prepare(self, data: CostData, *, first: bool) -> None:
        """Calibrate compute before the first fit, and fit communication before each."""
        sums = data.sums(self.encode)
        if first:
            self.calibrate(sums, data.phases_ms)
        self.fit_communication(data, sums[..., self.layout.dims])

    @torch.no_grad()
    def calibrate(self, sums: Float[Tensor, "S D L"], phases_ms: Float[Tensor, "S D 4"]) -> None:
        """Set the scale of each compute phase from measured costs, so that training starts near them."""
        predicted, measured = self.phases_ms(sums)[..., _COMPUTE], phases_ms[..., _COMPUTE]
        self.scale_ms *= measured.mean(dim=(0, 1)).clamp(min=1e-4) / predicted.mean(dim=(0, 1)).clamp(min=1e-9)

    @torch.no_grad()
    def fit_communication(self, data: CostData, dims: Float[Tensor, "S D"]) -> None:
        """Fit both all-to-alls of each topology among the samples, and what all-to-alls cost on any other."""
        fits, widths = {}, {}
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            shape = self.exchanges.topology(num_devices, devices_per_host)
            if num_devices > 1 and shape not in fits:
                held = dims[chosen, :num_devices]
                fits[shape] = fitted_communication(held, data.phases_ms[chosen, :num_devices])
                widest = held.amax(dim=1) * (num_devices - 1) / num_devices
                widths[shape] = float(widest.min()), float(widest.max())
        self.exchanges.learn_placements(fits, widths, data.batch_size)
        self.comm_ms.copy_(next(iter(fits.values()), torch.zeros(2, 4)))

    @torch.no_grad()
    def _data_comm_ms(self, data: CostData, dims: Float[Tensor, "S D"]) -> Float[Tensor, "S D 2"]:
        """Communication of measured placements, by the weights of each one's task."""
        comm_ms = torch.zeros(*dims.shape, 2)
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            shape = self.exchanges.topology(num_devices, devices_per_host)
            inputs = formula.comm_inputs(dims[chosen], num_devices)  # [N, D, 4]
            totals = (100 * dims[chosen].sum(dim=1)).tolist()
            weights = self.exchanges.fit_ms(shape, max(totals))
            if weights is None:
                each = [self.exchanges.weights_ms(shape, total) for total in totals]
                weights = torch.stack([self.comm_ms if own is None else own for own in each])  # [N, 2, 4]
            comm_ms[chosen] = inputs @ weights.mT
        return comm_ms

    @torch.no_grad()
    def fitted_data(self, data: CostData) -> _FitData:
        inputs, raw_work = self.work_inputs(data.features)
        sums, phases_ms = data.assignment @ self.encode(data.features, data.ratios), data.phases_ms
        device_ms = phases_ms.sum(-1)
        scale_ms = torch.maximum(device_ms, 0.2 * device_ms.amax(dim=1, keepdim=True))[..., None]  # [S, D, 1]
        comm_ms = self._data_comm_ms(data, sums[..., self.layout.dims]) - phases_ms[..., 1:3]
        present = sums[..., self.layout.count, None] > formula.ONE_TABLE
        samples = [
            data.assignment,
            formula.shared_inputs(sums),
            present * self.scale_ms / scale_ms,
            -phases_ms[..., _COMPUTE] / scale_ms,
            comm_ms.sum(dim=-1, keepdim=True) / scale_ms,
        ]
        return _FitData(inputs, self._by_pair(raw_work, data.ratios), torch.cat(samples, dim=-1))


def _huber(error: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    return nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=_HUBER)


def fitted_communication(dims: Float[Tensor, "S D"], phases_ms: Float[Tensor, "S D 4"]) -> Float[Tensor, "2 4"]:
    """Weights of `comm_inputs`: non-negative least squares of the error relative to the sample's overall cost.

    Three reweighted passes give outliers less weight (Huber's), since communication on a shared machine is measured with
    long tails.
    """
    inputs = formula.comm_inputs(dims).flatten(0, 1).double().numpy()  # [N, 4]
    overall = phases_ms.sum(-1).amax(dim=1, keepdim=True).expand(phases_ms.shape[:2])
    weight = 1 / overall.flatten().double().numpy()
    fitted = torch.zeros(2, 4)
    for row, phase in enumerate(_COMM):
        measured = phases_ms[..., phase].flatten().double().numpy()
        trust = np.ones_like(weight)
        for _ in range(3):
            solution = scipy.optimize.nnls(inputs * (weight * trust)[:, None], measured * weight * trust)[0]
            error = np.abs(inputs @ solution - measured) * weight
            trust = np.sqrt(np.minimum(1, _OUTLIER * (np.median(error) + 1e-9) / (error + 1e-12)))
        fitted[row] = torch.from_numpy(solution).float()
    return fitted
