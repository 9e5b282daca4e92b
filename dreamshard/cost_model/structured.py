"""The structured cost network: positive work per table and phase, summed, times a bounded correction for fusion."""

import math
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    BOUND,
    COUNT_SHIFT,
    CURVE_POINTS,
    LEAST_SQUARE,
    LEAST_SUM,
    LEAST_WORK,
    NETWORK,
    WIDE_DIMS,
    DeviceLaw,
    Floats,
    computes_ms,
    curve_points,
)
from dreamshard.cost_model.cost_network import COMPUTE, CostData, CostNetwork, TrainingDivergedError
from dreamshard.cost_model.exchanges import ExchangeModel, comm_inputs
from dreamshard.cost_model.features import (
    BACKWARD,
    BATCH,
    DISTINCT_ROWS,
    FORWARD,
    NUM_PAPER_FEATURES,
    PHYSICAL_FEATURES,
    VECTORS,
    Normaliser,
)
from dreamshard.tasks import PlacementTask

WIDE, DISTINCT, DIMS, LOOKUPS, COUNT = slice(-6, -4), -4, -3, -2, -1
"""Columns of a latent after the work of each phase, and its square: whether the table is wider than
each of `WIDE_DIMS`, hundreds of distinct weights per sample, hundreds of dims, tens of lookups per sample, tables."""

_LOGS = [COUNT, DISTINCT, DIMS, LOOKUPS]  # in the order of the correction's inputs
_SHARED = len(_LOGS) + len(WIDE_DIMS)  # inputs of the correction besides a phase's work and its concentration
_COLUMNS = slice(NUM_PAPER_FEATURES, None)  # that it sees: `PHYSICAL_FEATURES`
_PLACES = torch.tensor([-1.2, 0.0, 1.2])  # of steps, in spreads of the training pool from its mean
_SQUARES, _SATURATING = 3, 17  # inputs of a table's work: five quantities at three places, first lookups, hot lookups
_LOG_WIDE = torch.tensor(WIDE_DIMS).log()
_HIDDEN = 16
_UNITS = torch.tensor([100.0, 100.0, 10.0])  # of `DISTINCT`, `DIMS` and `LOOKUPS`
_EXPONENTS = -15, 8  # least and greatest of a table's work
_ITERATIONS = 50  # of a fit; more lower the loss but not the error on other tables
_NORMAL = 1.4826  # standard errors in a median absolute error, of normal errors
_HUBER = 0.05  # relative error above which the loss grows linearly
_WEIGHTS = {"slope": 0.06, "output_weight": 0.018}  # units of these: the larger, the less noise shrinks them
_GAIN = 8.5  # of a fit with a small loss over small weights


class StructuredCostNetwork(CostNetwork):
    """Compute, per phase: each table does work `pooling x dim x exp(linear(inputs))`; a device costs `launch + sum of work x
    exp(correction)`. The inputs are the logarithms of dim, rows, pooling, reuse and distinct rows, the share of hot
    lookups, three squares, and inputs that saturate:

    - Steps: `tanh` of the logarithms of dim, pooling, reuse, bytes of distinct rows and bytes of all rows, at three places
      of the training pool's spread. Hardware changes the price of a lookup between two levels: a cache keeps all, some or
      none of the distinct rows, an address cache reaches all or little of the table, a narrow row leaves part of a sector
      unused. Which size decides is unknown, so the fit weighs three. Beyond them a step is level, so it extrapolates.
    - The share of lookups that are a row's first, which no cache serves.

    A small net bounded to +-1.5 gives the correction from the logarithm of the sum, its concentration on few tables, the
    number of tables, lookups and distinct bytes, and whether a table is wider than 32 and than 64: the fused operator gives
    every row as many threads as the widest needs, so narrow tables cost more next to a wide one. The weights of wide tables
    begin at 0, so that they have no effect before a sample has shown one. Communication: linear in `comm_inputs`, by
    `exchanges`. `compiled._network_ms` is the formula in compiled code.
    """

    mean: Tensor
    std: Tensor
    scale_ms: Tensor
    log_scale: nn.Parameter
    slope: nn.Parameter
    launch: nn.Parameter
    hidden_weight: nn.Parameter
    hidden_bias: nn.Parameter
    output_weight: nn.Parameter

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self.register_buffer("mean", normaliser.mean[_COLUMNS].clone())  # [Z] to undo the normalisation
        self.register_buffer("std", normaliser.std[_COLUMNS].clone())
        self.register_buffer("scale_ms", torch.ones(2))
        self.register_buffer("narrowest", torch.ones(()))  # columns that were measured: fewer are an extrapolation
        drawn = torch.randn(2, _SHARED, _HIDDEN) / math.sqrt(6)
        weights = {
            "log_scale": torch.zeros(2),
            "slope": 0.01 * torch.randn(2, len(PHYSICAL_FEATURES) + _SQUARES + _SATURATING),
            "launch": torch.full((2,), -4.0),
            "hidden_weight": nn.functional.pad(drawn, (0, 0, 0, len(WIDE_DIMS))),
            "hidden_bias": 0.1 * torch.randn(2, _HIDDEN),
            "output_weight": 0.01 * torch.randn(2, _HIDDEN),
        }
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))
        self.exchanges = ExchangeModel()
        self.task_comm_ms: Tensor | None = None  # in a copy for one task

    @property
    def comm_ms(self) -> Float[Tensor, "2 4"]:
        """Weights of `comm_inputs`, forward and backward: of the task, or of the placements that it was fitted to."""
        return self.exchanges.fitted_ms if self.task_comm_ms is None else self.task_comm_ms

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 5"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Work and squared work of each phase, and `WIDE` to `COUNT`."""
        logs, inputs, raw_work = self._work_inputs(normalised, ratios)
        work = self._work(inputs, raw_work)
        wide = (logs[..., :1] > _LOG_WIDE).to(work.dtype)  # [*B, 2]
        distinct = logs[..., :1] + logs[..., 4:5]
        shared = torch.cat([distinct, logs[..., 0:3:2]], -1).exp() / _UNITS
        if ratios is not None:
            shared = shared * ratios[..., [DISTINCT_ROWS, VECTORS, BATCH]]
        return torch.cat([work, work.square(), wide, shared, torch.ones_like(wide[..., :1])], -1)

    def _work_inputs(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 5"] | None
    ) -> tuple[Float[Tensor, "*B Y"], Float[Tensor, "*B Z"], Float[Tensor, "*B _"]]:
        """Logarithms; inputs of the exponent of a table's work; the work before it, in hundreds of pooled weights."""
        z = normalised[..., _COLUMNS]
        logs = z * self.std + self.mean
        dim, rows, pooling, reuse, unique, hot = z.unbind(-1)
        per_row, per_unique = (self.std[0] / self.std[1:5:3]).unbind()
        sizes = torch.stack([dim, pooling, reuse, unique + dim * per_unique, rows + dim * per_row], -1)  # [*B, 5]
        steps = (sizes[..., None] + _PLACES).tanh().flatten(-2)
        saturating = torch.cat([steps, (-logs[..., 3:4]).exp(), hot[..., None].tanh()], -1)
        work = (logs[..., :1] + logs[..., 2:3]).exp() / 100
        if ratios is not None:
            work = work * ratios[..., [FORWARD, BACKWARD]]
        return logs, torch.cat([z, 0.3 * z[..., :3].square(), saturating], -1), work

    def _work(self, inputs: Float[Tensor, "*B Z"], raw_work: Float[Tensor, "*B _"]) -> Float[Tensor, "*B 2"]:
        return raw_work * (inputs @ self.slope.T + self.log_scale).clamp(*_EXPONENTS).exp()

    @torch.no_grad()
    def law(self, num_devices: int, curves: Floats | None = None) -> DeviceLaw:
        """`curves` of other collectives than the all-to-all."""

        def array(value: Tensor) -> Floats:
            return np.ascontiguousarray(value.numpy(), np.float64)

        launch = array(nn.functional.softplus(self.launch.double()))
        latency, own, largest, received = array(self.comm_ms).sum(axis=0).tolist()
        share, size = (num_devices - 1) / num_devices, 4 + _SHARED
        curves = np.zeros((4, CURVE_POINTS)) if curves is None else curves
        curves[ALL_TO_ALL] = largest * share * curve_points()
        return DeviceLaw(
            NETWORK,
            width=size + DIMS,
            tables=size + COUNT,
            curves=curves,
            own_ms=own * share - received / num_devices,
            total_ms=received / num_devices,
            fixed_ms=latency,
            hidden_weight=array(self.hidden_weight.movedim(0, 1)).reshape(_SHARED + 2, -1),
            hidden_bias=array(self.hidden_bias).ravel(),
            output_weight=array(self.output_weight) / BOUND,
            scale_ms=array(self.scale_ms),
            launch_ms=launch * array(self.scale_ms),
        )

    @torch.no_grad()
    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Compute by `law`, communication by `comm_ms`."""
        comm_ms = comm_inputs(sums[..., DIMS]) @ self.comm_ms.T
        loads = sums.flatten(0, -2).double().numpy()
        compute = torch.from_numpy(computes_ms(self.law(1), loads)).to(sums.dtype).view(comm_ms.shape)
        return torch.cat([compute[..., :1], comm_ms, compute[..., 1:]], -1)

    def knows_topology(self, task: PlacementTask) -> bool:
        return self.exchanges.knows(self.exchanges.topology(task)) or super().knows_topology(task)

    def for_task(self, task: PlacementTask) -> "StructuredCostNetwork":
        network, exchanges = copy(self), self.exchanges
        batches = task.batch_size / int(exchanges.batch_size) if task.batch_size and exchanges.batch_size else 1.0
        sum_dims = batches * float(task.tables.sent_dim.sum())
        network.task_comm_ms = exchanges.weights_ms(exchanges.topology(task), sum_dims)
        return network

    def fit(self, data: CostData, optimizer: torch.optim.Optimizer, *steps: Any) -> float:
        """Fit communication, and compute by L-BFGS on all samples, from the weights as they are; see `CostNetwork.fit`.

        The objective is squared weights minus the loss to the power of -1/4. Squares weigh as the loss to the power of 5/4,
        so noise shrinks the weights. Without that, a search finds their errors, most of all with few tables per device.
        Weights are in units of their usual size: else 50 steps do not converge, and may lose a phase's gradient.
        """
        with torch.no_grad():
            self.narrowest = self._work_inputs(data.features, None)[0][:, 0].exp().min().round()
            self.exchanges.learn_placements(data, data.sums(self.encode)[..., DIMS])
            if self.measured_on is None:
                self.calibrate(data)
        loss, parameters = self.loss_of(data), list(self.parameters())
        units = np.concatenate([np.full(each.numel(), _WEIGHTS.get(name, 1)) for name, each in self.named_parameters()])

        def objective(scaled: Floats) -> tuple[float, Floats]:
            vector_to_parameters(torch.from_numpy(scaled * units).float(), parameters)
            with torch.enable_grad():
                gain = _GAIN * loss() ** -0.25
            slopes = torch.cat([each.flatten() for each in torch.autograd.grad(gain, parameters)]).double().numpy()
            kept = scaled * (units < 1) / data.holding.sum().item()
            return float(kept @ scaled) - gain.item(), 2 * kept - slopes * units

        start = parameters_to_vector(parameters).detach().double().numpy() / units
        found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
        objective(found.x)
        error_ms = (self.phases_ms(data.sums(self.encode)) - data.phases_ms).sum(-1)
        error_ms /= torch.maximum(data.phases_ms.sum(-1), 0.2 * data.overall_ms[:, None])
        self.spread = _NORMAL * error_ms[data.holding].abs().median()
        value = loss().item()
        if not math.isfinite(value):
            raise TrainingDivergedError(
                f"the cost network's loss became {value}; the last checkpoint is intact: look for extreme cost samples"
            )
        return value

    def calibrate(self, data: CostData) -> None:
        """Set the scale of each compute phase, so that training starts near the measured costs."""
        predicted, measured = self.phases_ms(data.sums(self.encode))[..., COMPUTE], data.phases_ms[..., COMPUTE]
        self.scale_ms *= measured.mean(dim=(0, 1)).clamp(min=1e-4) / predicted.mean(dim=(0, 1))

    @torch.no_grad()
    def loss_of(self, data: CostData) -> Callable[[], Float[Tensor, ""]]:
        """Huber's loss of the relative errors of compute by phase and of the whole cost, as a function of the parameters.

        Errors are relative to the device's cost, at least a fifth of the slowest's, so that idle ones count little. Constants
        of the `N` devices with tables are computed once.
        """
        held, sums = data.holding, data.sums(self.encode)
        _, inputs, raw_work = self._work_inputs(data.features, None)
        assignment, measured_ms = data.assignment[held], data.phases_ms[held]  # [N, P], [N, 4]
        scale_ms = torch.maximum(data.phases_ms.sum(-1), 0.2 * data.overall_ms[:, None])[held]
        comm_ms = (comm_inputs(sums[..., DIMS]) @ self.comm_ms.T)[held]
        comm_error = (comm_ms - measured_ms[:, 1:3]).sum(1) / scale_ms  # [N]
        idle_error = -measured_ms[:, COMPUTE].T / scale_ms  # [2, N]
        per_unit = self.scale_ms[:, None] / scale_ms  # [2, N]
        logs = 0.5 * (sums[held][:, _LOGS] + LEAST_SUM).log()  # [N, 4]
        logs[:, 0] -= COUNT_SHIFT
        shared = torch.cat([logs, sums[held][:, WIDE].clamp(max=1)], 1).T.expand(2, -1, -1)

        def loss() -> Float[Tensor, ""]:
            work = self._work(inputs, raw_work)  # [P, 2]
            total, square = (assignment @ torch.cat([work, work.square()], 1)).T.chunk(2)  # [2, N]
            concentration = 2 * (square + LEAST_SQUARE).sqrt() / (total + LEAST_WORK)
            own = torch.stack([0.5 * (total + LEAST_WORK).log(), concentration], 1)
            bias, weight = self.hidden_bias[..., None], self.hidden_weight.mT
            hidden = torch.baddbmm(bias, weight, torch.cat([own, shared], 1)).relu()  # [2, H, N]
            output = torch.bmm(self.output_weight[:, None], hidden)[:, 0]  # [2, N]
            correction = (BOUND * (output / BOUND).tanh()).exp()
            compute = nn.functional.softplus(self.launch[:, None]) + total * correction
            error = idle_error + compute * per_unit  # [2, N]
            return _huber(error) / 2 + _huber(error.sum(0) + comm_error)

        return loss


def _huber(error: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    return nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=_HUBER)
