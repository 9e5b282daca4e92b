"""The structured cost network: positive work per table and phase, summed, times a bounded correction for fusion."""

import math
from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import structured_formula as formula
from dreamshard.cost_model.analytic_gradient import HUBER, LOSS_SCALE, FitData, StructuredFit, error_scale
from dreamshard.cost_model.communication_fit import fitted_communication
from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import Architecture, CostNetwork
from dreamshard.cost_model.exchange_model import ExchangeModel
from dreamshard.cost_model.features import FEATURES, PHYSICAL_FEATURES, Normaliser
from dreamshard.cost_model.structured_evaluator import StructuredEvaluator
from dreamshard.cost_model.structured_formula import LatentLayout, StructuredWeights
from dreamshard.cost_model.work_ratios import BACKWARD, BATCH, DISTINCT, FORWARD
from dreamshard.exchange_sample import ExchangeSample
from dreamshard.tasks import PlacementTask

_COLUMNS = [FEATURES.index(name) for name in PHYSICAL_FEATURES]  # that it sees
_COMPUTE = [0, 3]  # of PHASES: forward_compute, backward_compute


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

    architecture: Architecture = "structured"
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

    def weights(self) -> StructuredWeights:
        """The weights by pair, as views of the parameters."""
        parameters = (self.launch, self.hidden_weight, self.hidden_bias, self.output_weight)
        launch, weight, bias, output = (parameter.flatten(0, 1) for parameter in parameters)
        return StructuredWeights(self.layout, launch, weight, bias, output, self.scale_ms, self.comm_ms)

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
        exponent = torch.einsum("...z,mpz->...mp", inputs, self.slope) + self.log_scale
        exponent = exponent.clamp(formula.LEAST_EXPONENT, formula.MOST_EXPONENT)
        work = raw_work[..., None, None] * exponent.exp()  # [*B, M, 2]
        if ratios is not None:
            work = work * ratios[..., None, [FORWARD, BACKWARD]]
        dim, _rows, pooling, _reuse, unique, _hot = self._logs(normalised).unbind(-1)
        work = work.flatten(-2)
        wide = (dim.unsqueeze(-1) > torch.tensor(formula.WIDE_DIMS).log()).to(dim.dtype)  # [*B, 2]
        shared = torch.stack([(dim + unique).exp() / 100, dim.exp() / 100, pooling.exp() / 10], dim=-1)
        if ratios is not None:
            shared = shared * ratios[..., [DISTINCT, BATCH, BATCH]]
        return torch.cat([work, work.square(), wide, shared, torch.ones_like(shared[..., :1])], dim=-1)

    def member_phases_ms(
        self, sums: Float[Tensor, "*B D L"], comm_ms: Float[Tensor, "*B D 2"] | None = None
    ) -> Float[Tensor, "*B D M 4"]:
        """Milliseconds as each member predicts them; communication as given, else by `comm_ms` of the network."""
        layout, weights, batch = self.layout, self.weights(), sums.shape[:-1]
        flat = sums.reshape(-1, layout.size)  # [N, L]
        work, square = flat[:, layout.work].T, flat[:, layout.squares].T  # [2M, N]
        shared = (values.expand_as(work) for values in formula.shared_inputs(flat).T)
        own = formula.work_input(work), formula.concentration_input(work, square)
        inputs = torch.stack([*own, *shared], dim=1)  # [2M, X, N]
        hidden = torch.baddbmm(weights.hidden_bias[:, :, None], weights.hidden_weight.mT, inputs).relu()  # [2M, H, N]
        output = (weights.output_weight[:, None, :] @ hidden).squeeze(1) / formula.BOUND
        launch = torch.nn.functional.softplus(weights.launch)[:, None]
        present = flat[:, layout.count] > formula.ONE_TABLE
        compute = present * (launch + work * (formula.BOUND * output.tanh()).exp())  # [2M, N]
        compute = compute.T.reshape(*batch, self.members, 2) * self.scale_ms  # [*B, D, M, 2]
        if comm_ms is None:
            comm_ms = formula.comm_inputs(sums[..., layout.dims]) @ self.comm_ms.T  # [*B, D, 2]
        comm = comm_ms.unsqueeze(-2).expand(*batch, self.members, 2)
        return torch.cat([compute[..., :1], comm, compute[..., 1:]], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """The mean over the members."""
        return self.member_phases_ms(sums).mean(dim=-2)

    def loss(self, data: CostData, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Huber's loss of the errors of phases and of their sum, relative to `error_scale`, over all members."""
        sums, measured = data.sums(self.encode), data.phases_ms[chosen]
        comm_ms = self._data_comm_ms(data, sums[..., self.layout.dims])
        predicted = self.member_phases_ms(sums[chosen], comm_ms[chosen])  # [B, D, M, 4]
        error = (predicted - measured[:, :, None, :]) / error_scale(measured)[:, :, None, None]
        by_phase, whole = (
            nn.functional.smooth_l1_loss(values, torch.zeros_like(values), beta=HUBER)
            for values in (error, error.sum(-1))
        )
        return LOSS_SCALE * (by_phase + whole)

    def evaluator(self) -> StructuredEvaluator:
        return StructuredEvaluator(self.weights())

    def arguments(self) -> dict[str, int]:
        return {"members": self.members, "hidden": self.hidden}

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
        network._buffers = {**self._buffers, "comm_ms": weights}
        return network

    @torch.no_grad()
    def predicted_overall_ms(self, data: CostData) -> Float[Tensor, " S"]:
        sums = data.sums(self.encode)
        phases_ms = self.member_phases_ms(sums, self._data_comm_ms(data, sums[..., self.layout.dims])).mean(dim=-2)
        return phases_ms.sum(dim=-1).max(dim=-1).values

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
    def fit_data(self, data: CostData) -> FitData:
        """What stays constant during a fit, once communication is fitted."""
        inputs, raw_work = self.work_inputs(data.features)
        raw_work = raw_work[:, None]
        if data.ratios is not None:
            raw_work = raw_work * data.ratios[:, [FORWARD, BACKWARD]].repeat(1, self.members)  # [P, 2M]
        sums, phases_ms = data.assignment @ self.encode(data.features, data.ratios), data.phases_ms
        scale = error_scale(phases_ms)
        comm = self._data_comm_ms(data, sums[..., self.layout.dims]) - phases_ms[..., 1:3]
        return FitData(
            inputs.numpy(),
            raw_work.numpy(),
            data.assignment.numpy(),
            formula.shared_inputs(sums).numpy(),
            (sums[..., self.layout.count] > formula.ONE_TABLE).float().numpy(),
            phases_ms[..., _COMPUTE].permute(2, 0, 1).contiguous().numpy(),
            scale.numpy(),
            (comm / scale[..., None]).permute(2, 0, 1).contiguous().numpy(),
        )

    def fit_steps(
        self, optimizer: torch.optim.Optimizer, data: CostData, batches: Sequence[Int[Tensor, " B"]]
    ) -> float:
        """With the gradient by hand."""
        constant = self.fit_data(data)
        fitting = StructuredFit(dict(self.named_parameters()), self.scale_ms, optimizer)
        total = 0.0
        for chosen in batches:
            total += fitting.gradient(constant, chosen.numpy())
            fitting.step()
        fitting.write_back()
        return total
