"""The structured cost network: positive work per table and phase, summed, times a bounded correction for fusion."""

import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

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
    Normaliser,
)
from dreamshard.costs import ExchangeSample
from dreamshard.tasks import PlacementTask

WIDE, DISTINCT, DIMS, LOOKUPS, COUNT = slice(-6, -4), -4, -3, -2, -1
"""Columns of a latent after the work of each pair of a member and a phase, and its square: whether the table is wider than
each of `WIDE_DIMS`, hundreds of distinct weights per sample, hundreds of dims, tens of lookups per sample, tables."""

_LOGS = [COUNT, DISTINCT, DIMS, LOOKUPS]  # in the order of the correction's inputs
_SHARED = len(_LOGS) + len(WIDE_DIMS)  # inputs of the correction besides a pair's work and its concentration
_COLUMNS = slice(NUM_PAPER_FEATURES, None)  # that it sees: `PHYSICAL_FEATURES`
_PLACES = torch.tensor([-1.2, 0.0, 1.2])  # of steps, in spreads of the training pool from its mean
_SQUARES, _SATURATING = 3, 17  # inputs of a table's work: five quantities at three places, first lookups, hot lookups
_LOG_WIDE = torch.tensor(WIDE_DIMS).log()
_MEMBERS, _HIDDEN = 4, 16
_UNITS = torch.tensor([100.0, 100.0, 10.0])  # of `DISTINCT`, `DIMS` and `LOOKUPS`
_EXPONENTS = -15, 8  # least and greatest of a table's work
_ITERATIONS = 50  # of a fit; more lower the loss but not the error on other tables
_HUBER = 0.05  # relative error above which the loss grows linearly
_LOSS_SCALE = 10.0


class FitData(NamedTuple):
    """What is constant during a fit, of the `N` devices with tables.

    Errors are relative to the device's cost, at least a fifth of the slowest's, so that idle ones count little.

    Attributes:
        inputs: the exponent of a table's work is linear in them.
        raw_work: of each table before the exponent; of each pair if these differ.
        assignment: 1 for the tables of each device.
        shared: inputs of the correction that all pairs share.
        per_unit: relative error per unit of forward and backward compute.
        idle_error: without any compute.
        comm_error: of communication.
    """

    inputs: Float[Tensor, "P Z"]
    raw_work: Float[Tensor, "P _"]
    assignment: Float[Tensor, "N P"]
    shared: Float[Tensor, "X N"]
    per_unit: Float[Tensor, "2 N"]
    idle_error: Float[Tensor, "2 N"]
    comm_error: Float[Tensor, " N"]


class StructuredCostNetwork(CostNetwork):
    """An ensemble of `M` structured predictors, evaluated together; the prediction is their mean.

    Compute, per phase: each table does work `pooling x dim x exp(linear(inputs))`; a device costs `launch + sum of work x
    exp(correction)`. The inputs are the logarithms of dim, rows, pooling, reuse and distinct rows, the share of hot
    lookups, three squares, and inputs that saturate:

    - Steps: `tanh` of the logarithms of dim, pooling, reuse, bytes of distinct rows and bytes of all rows, at three places
      of the training pool's spread. Hardware changes the price of a lookup between two levels: a cache keeps all, some or
      none of the distinct rows, an address cache reaches all or little of the table, a narrow row leaves part of a sector
      unused. Which size decides is unknown, so the fit weighs three. Beyond them a step is level, so it extrapolates.
    - The share of lookups that are a row's first, which no cache serves.

    A small net bounded to +-1.5 gives the correction from the logarithm of the sum, its concentration on few tables, the
    number of tables, lookups and distinct bytes, and whether a table is wider than 32 and than 64: the fused operator gives
    every row as many threads as the widest needs, so narrow tables cost more beside a wide one. The weights of wide tables
    begin at 0, so that they have no effect before a sample has shown one. Communication, the same for all members: linear
    in `comm_inputs`, by `exchanges`.

    A *pair* is one member's forward or backward compute. `compiled._network_ms` is the formula in compiled code, and
    `loss_and_gradient` its gradient.
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
        drawn = torch.randn(_MEMBERS, 2, _SHARED, _HIDDEN) / math.sqrt(6)
        of_wide = torch.zeros(_MEMBERS, 2, len(WIDE_DIMS), _HIDDEN)
        weights = {
            "log_scale": torch.zeros(_MEMBERS, 2),
            "slope": 0.01 * torch.randn(_MEMBERS, 2, len(PHYSICAL_FEATURES) + _SQUARES + _SATURATING),
            "launch": torch.full((_MEMBERS, 2), -4.0),
            "hidden_weight": torch.cat([drawn, of_wide], dim=2),
            "hidden_bias": 0.1 * torch.randn(_MEMBERS, 2, _HIDDEN),
            "output_weight": 0.01 * torch.randn(_MEMBERS, 2, _HIDDEN),
        }
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        self.exchanges = ExchangeModel()
        self.task_comm_ms: Tensor | None = None  # in a copy for one task

    @property
    def comm_ms(self) -> Float[Tensor, "2 4"]:
        """Weights of `comm_inputs`, forward and backward: of the task, or of the placements that it was fitted to."""
        return self.exchanges.fitted_ms if self.task_comm_ms is None else self.task_comm_ms

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Work and squared work of each pair, and `WIDE` to `COUNT`."""
        logs, inputs, raw_work = self._work_inputs(normalised, ratios)
        work = raw_work * self._exponents(inputs).clamp(*_EXPONENTS).exp()  # [*B, 2M]
        wide = (logs[..., :1] > _LOG_WIDE).to(work.dtype)  # [*B, 2]
        distinct = logs[..., :1] + logs[..., 4:5]
        shared = torch.cat([distinct, logs[..., 0:3:2]], dim=-1).exp() / _UNITS
        if ratios is not None:
            shared = shared * ratios[..., [DISTINCT_ROWS, BATCH, BATCH]]
        return torch.cat([work, work.square(), wide, shared, torch.ones_like(wide[..., :1])], dim=-1)

    def _work_inputs(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None
    ) -> tuple[Float[Tensor, "*B Y"], Float[Tensor, "*B Z"], Float[Tensor, "*B _"]]:
        """Logarithms; inputs of the exponent of a table's work; the work before it, in hundreds of pooled weights."""
        z = normalised[..., _COLUMNS]
        logs = z * self.std + self.mean
        num_bytes = z[..., [4, 1]] + z[..., :1] * self.std[0] / self.std[[4, 1]]  # of distinct rows, of all rows
        sizes = torch.cat([z[..., [0, 2, 3]], num_bytes], dim=-1)  # [*B, 5]
        steps = (sizes[..., None] + _PLACES).tanh().flatten(-2)
        saturating = torch.cat([steps, (-logs[..., 3:4]).exp(), z[..., 5:].tanh()], dim=-1)
        work = (logs[..., :1] + logs[..., 2:3]).exp() / 100
        if ratios is not None:
            work = work * ratios[..., [FORWARD, BACKWARD]].tile(_MEMBERS)
        return logs, torch.cat([z, 0.3 * z[..., :3].square(), saturating], dim=-1), work

    def _exponents(self, inputs: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B M2"]:
        return inputs @ self.slope.flatten(0, 1).T + self.log_scale.flatten()

    @torch.no_grad()
    def law(self, num_devices: int, curves: Floats | None = None) -> DeviceLaw:
        """The mean of the members; `curves` of other collectives than the all-to-all."""

        def array(value: Tensor) -> Floats:
            return np.ascontiguousarray(value.numpy(), np.float64)

        def pairs(weights: nn.Parameter) -> Floats:
            """With pairs of a member and a phase last."""
            own = array(weights)
            return np.ascontiguousarray(np.moveaxis(own.reshape(2 * _MEMBERS, *own.shape[2:]), 0, -1))

        scale = np.concatenate([array(self.scale_ms) / _MEMBERS] * _MEMBERS)  # [2M]
        launch = array(nn.functional.softplus(self.launch.double())).ravel()
        latency, own, largest, received = array(self.comm_ms).sum(axis=0).tolist()
        share, size = (num_devices - 1) / num_devices, 4 * _MEMBERS + _SHARED
        curves = np.zeros((4, CURVE_POINTS)) if curves is None else curves.copy()
        curves[ALL_TO_ALL] = largest * share * curve_points()
        return DeviceLaw(
            NETWORK,
            width=size + DIMS,
            tables=size + COUNT,
            curves=curves,
            own_ms=own * share - received / num_devices,
            total_ms=received / num_devices,
            fixed_ms=latency,
            hidden_weight=pairs(self.hidden_weight).reshape(_SHARED + 2, -1),
            hidden_bias=pairs(self.hidden_bias).ravel(),
            output_weight=pairs(self.output_weight) / BOUND,
            scale_ms=scale,
            launch_ms=(launch * scale).reshape(-1, 2).sum(axis=0),
        )

    @torch.no_grad()
    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """The mean over the members; communication by `comm_ms`."""
        return self._phases_ms(sums, comm_inputs(sums[..., DIMS]) @ self.comm_ms.T)

    def _phases_ms(self, sums: Float[Tensor, "*B D L"], comm_ms: Float[Tensor, "*B D 2"]) -> Float[Tensor, "*B D 4"]:
        loads = sums.flatten(0, -2).double().numpy()
        compute = torch.from_numpy(computes_ms(self.law(1), loads)).to(sums.dtype).view(comm_ms.shape)
        return torch.cat([compute[..., :1], comm_ms, compute[..., 1:]], dim=-1)

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        self.exchanges.learn_exchanges(samples)

    def knows_topology(self, task: PlacementTask) -> bool:
        shape = self.exchanges.topology(task.num_devices, task.devices_per_host)
        return self.exchanges.knows(shape) or super().knows_topology(task)

    def for_task(self, task: PlacementTask) -> "StructuredCostNetwork":
        network, exchanges = copy(self), self.exchanges
        shape = exchanges.topology(task.num_devices, task.devices_per_host)
        batches = task.batch_size / int(exchanges.batch_size) if task.batch_size and exchanges.batch_size else 1.0
        network.task_comm_ms = exchanges.weights_ms(shape, batches * float(task.tables.dim.sum()))
        return network

    @torch.no_grad()
    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        sums = data.sums(self.encode)
        phases_ms = self._phases_ms(sums, self.exchanges.placed_ms(data, sums[..., DIMS]))
        return phases_ms.sum(dim=-1).max(dim=-1).values, data.overall_ms

    @torch.no_grad()
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
        """Fit communication, and compute by L-BFGS on all samples, from the weights as they are; see `CostNetwork.fit`."""
        sums = data.sums(self.encode)
        self.narrowest = self._work_inputs(data.features, None)[0][:, 0].exp().min().round()
        self.exchanges.learn_placements(data, sums[..., DIMS])
        if first:
            self.calibrate(sums, data.phases_ms)
        fitted, parameters = self.fit_data(data, sums), list(self.parameters())

        def objective(weights: Floats) -> tuple[float, Floats]:
            vector_to_parameters(torch.from_numpy(weights).float(), parameters)
            loss, gradient = self.loss_and_gradient(fitted)
            return loss, parameters_to_vector(gradient).double().numpy()

        found = scipy.optimize.minimize(
            objective,
            parameters_to_vector(parameters).double().numpy(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _ITERATIONS},
        )
        if not math.isfinite(found.fun):
            raise TrainingDivergedError(
                f"the cost network's loss became {found.fun}; the last checkpoint is intact: look for extreme cost samples"
            )
        vector_to_parameters(torch.from_numpy(found.x).float(), parameters)
        return float(found.fun)

    def calibrate(self, sums: Float[Tensor, "S D L"], phases_ms: Float[Tensor, "S D 4"]) -> None:
        """Set the scale of each compute phase from measured costs, so that training starts near them."""
        predicted, measured = self.phases_ms(sums)[..., COMPUTE], phases_ms[..., COMPUTE]
        self.scale_ms *= measured.mean(dim=(0, 1)).clamp(min=1e-4) / predicted.mean(dim=(0, 1)).clamp(min=1e-9)

    def fit_data(self, data: CostData, sums: Float[Tensor, "S D L"]) -> FitData:
        """What a fit to samples of these latent sums needs."""
        _, inputs, raw_work = self._work_inputs(data.features, data.ratios)
        device_ms = data.phases_ms.sum(-1)  # [S, D]
        scale_ms = torch.maximum(device_ms, 0.2 * device_ms.amax(dim=1, keepdim=True))
        comm_ms = self.exchanges.placed_ms(data, sums[..., DIMS]).sum(dim=-1) - data.phases_ms[..., 1:3].sum(dim=-1)
        held = sums[..., COUNT] > 0.5
        logs = 0.5 * (sums[held][:, _LOGS] + LEAST_SUM).log()  # [N, 4]
        logs[:, 0] -= COUNT_SHIFT
        return FitData(
            inputs,
            raw_work,
            data.assignment[held],
            torch.cat([logs, sums[held][:, WIDE].clamp(max=1)], dim=1).T.contiguous(),
            (self.scale_ms / scale_ms[held][:, None]).T.contiguous(),
            (-data.phases_ms[held][:, COMPUTE] / scale_ms[held][:, None]).T.contiguous(),
            (comm_ms / scale_ms)[held],
        )

    @torch.no_grad()
    def loss_and_gradient(self, data: FitData) -> tuple[float, list[Tensor]]:
        """Huber's loss of the relative errors of compute by phase and of the whole cost, and its gradient by parameter."""
        hidden_weight, output_weight = self.hidden_weight.flatten(0, 1), self.output_weight.flatten(0, 1)
        exponent = self._exponents(data.inputs)  # [P, 2M]
        clamped = exponent.clamp(*_EXPONENTS)
        work = data.raw_work * clamped.exp()
        total, square = (data.assignment @ torch.cat([work, work.square()], dim=1)).T.chunk(2)  # [2M, N]
        total_work, root = total + LEAST_WORK, (square + LEAST_SQUARE).sqrt()
        concentration = 2 * root / total_work
        own = torch.stack([0.5 * total_work.log(), concentration], dim=1)
        inputs = torch.cat([own, data.shared.expand(len(own), -1, -1)], dim=1)  # [2M, X, N]
        hidden = torch.baddbmm(self.hidden_bias.flatten(0, 1)[..., None], hidden_weight.mT, inputs).relu()  # [2M, H, N]
        bounded = (torch.bmm(output_weight[:, None], hidden)[:, 0] / BOUND).tanh()  # [2M, N]
        correction = (BOUND * bounded).exp()
        compute = nn.functional.softplus(self.launch.view(-1, 1)) + total * correction
        error = data.idle_error + compute.view(-1, 2, compute.shape[1]) * data.per_unit  # [M, 2, N]
        whole = error.sum(dim=1) + data.comm_error  # [M, N]
        loss = _LOSS_SCALE * (_huber(error) / 2 + _huber(whole))

        # The chain rule, backwards
        by_error = _huber_slope(error) / 2 + _huber_slope(whole)[:, None]
        by_compute = (_LOSS_SCALE * by_error * data.per_unit).flatten(0, 1)  # [2M, N]
        by_output = by_compute * total * correction * (1 - bounded.square())
        by_hidden = output_weight[..., None] * by_output[:, None] * (hidden > 0)  # [2M, H, N]
        by_log, by_concentration = torch.bmm(hidden_weight[:, :2], by_hidden).unbind(dim=1)  # [2M, N]
        by_total = by_compute * correction + (0.5 * by_log - by_concentration * concentration) / total_work
        by_square = by_concentration / (root * total_work)
        by_work, by_squared = (data.assignment.T @ torch.cat([by_total, by_square]).T).chunk(2, dim=1)  # [P, 2M]
        by_exponent = (by_work + 2 * work * by_squared) * work * (exponent == clamped)
        gradient = {
            "log_scale": by_exponent.sum(dim=0),
            "slope": by_exponent.T @ data.inputs,
            "launch": by_compute.sum(dim=1) * self.launch.flatten().sigmoid(),
            "hidden_weight": torch.bmm(inputs, by_hidden.mT),
            "hidden_bias": by_hidden.sum(dim=2),
            "output_weight": torch.bmm(hidden, by_output[..., None]),
        }
        return float(loss), [gradient[name].view_as(own) for name, own in self.named_parameters()]


def _huber(error: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    return nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=_HUBER)


def _huber_slope(error: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    return (error / _HUBER).clamp(-1, 1) / error.numel()
