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

_LOGS = [COUNT, DISTINCT, DIMS, LOOKUPS]  # in the order of the device's inputs
INPUTS = 2 + len(_LOGS) + len(WIDE_DIMS)  # work, its 2-norm, and what is no work
_COLUMNS = slice(NUM_PAPER_FEATURES, None)  # that it sees: `PHYSICAL_FEATURES`
_PLACES = torch.tensor([-1.2, 0.0, 1.2])  # of steps, in spreads of the training pool from its mean
_LOG_WIDE = torch.tensor(WIDE_DIMS).log()
_UNITS_EACH = 6  # hidden units that bend upwards, and as many that bend downwards
_UNITS = torch.tensor([100.0, 100.0, 10.0])  # of `DISTINCT`, `DIMS` and `LOOKUPS`
_ITERATIONS = 200
_NORMAL = 1.4826  # standard errors in a median absolute error, of normal errors
_STEPS, _FREE = 12, 6
CFG = dict(price=1.0, step=0.15, free=0.15, exponent=0.1, weight=0.5, bias=1.0, output=0.05, launch=1.0, temper=1.0, nu=4.0, power=1.5, floor=0.004, iters=300, gates=1, classes=[(0, 1), (1, 6), (6, 11), (11, 17)])
def nprices():
    return 5 + 2 * len(CFG["classes"]) + 6 * CFG["gates"]



class StructuredCostNetwork(CostNetwork):
    """TODO"""

    mean: Tensor
    std: Tensor
    scale_ms: Tensor
    input_mean: Tensor
    input_std: Tensor
    unit: Tensor
    price: nn.Parameter
    step: nn.Parameter
    free: nn.Parameter
    launch: nn.Parameter
    power: nn.Parameter
    exponent: nn.Parameter
    hidden_weight: nn.Parameter
    hidden_bias: nn.Parameter
    output_weight: nn.Parameter
    noise: nn.Parameter

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self.register_buffer("mean", normaliser.mean[_COLUMNS].clone())  # [Z] to undo the normalisation
        self.register_buffer("std", normaliser.std[_COLUMNS].clone())
        self.register_buffer("bin_mean", normaliser.mean[4:21].clone())
        self.register_buffer("bin_std", normaliser.std[4:21].clone())
        self.register_buffer("scale_ms", torch.ones(2))
        self.register_buffer("input_mean", torch.zeros(2, INPUTS))
        self.register_buffer("input_std", torch.ones(2, INPUTS))
        self.register_buffer("unit", torch.ones(nprices()))
        self.register_buffer("narrowest", torch.ones(()))  # columns that were measured: fewer are an extrapolation
        hidden = 2 * _UNITS_EACH
        exponent = torch.zeros(2, INPUTS)
        exponent[:, 0] = 1.0
        weights = {
            "price": self.price_centre(),
            "step": torch.full((4, _STEPS), 0.02),
            "free": torch.zeros(4, _FREE),
            "launch": torch.full((2,), 0.1),
            "power": torch.full((2,), 3.0),
            "exponent": exponent,
            "hidden_weight": torch.rand(2, INPUTS, hidden) * 0.5,
            "hidden_bias": 1.0 * torch.randn(2, hidden),
            "output_weight": torch.full((2, hidden), 0.01),
            "noise": torch.full((3,), -3.0),
        }
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))
        self.prior_bias = None
        self.exchanges = ExchangeModel()
        self.task_comm_ms: Tensor | None = None  # in a copy for one task

    def price_centre(self):
        c = torch.zeros(4, nprices()); k = len(CFG["classes"])
        by = [1, 2, 4] + list(range(5 + k, 5 + 2 * k)) + list(range(5 + 2 * k, nprices() - 3 * CFG["gates"]))
        other = [i for i in range(nprices()) if i not in by]
        c[0::2, by] = 1 / len(by); c[1::2, other] = 1 / len(other)
        return c

    @property
    def comm_ms(self) -> Float[Tensor, "2 4"]:
        """Weights of `comm_inputs`, forward and backward: of the task, or of the placements that it was fitted to."""
        return self.exchanges.fitted_ms if self.task_comm_ms is None else self.task_comm_ms

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 5"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """Work and squared work of each phase, and `WIDE` to `COUNT`."""
        logs, amounts, inputs, free = self._table_inputs(normalised)
        work = self._work(amounts, inputs, free)
        if ratios is not None:
            work = work * ratios[..., [FORWARD, FORWARD, BACKWARD, BACKWARD]]
        wide = (logs[..., :1] > _LOG_WIDE).to(work.dtype)  # [*B, 2]
        distinct = logs[..., :1] + logs[..., 4:5]
        shared = torch.cat([distinct, logs[..., 0:3:2]], -1).exp() / _UNITS
        if ratios is not None:
            shared = shared * ratios[..., [DISTINCT_ROWS, VECTORS, BATCH]]
        return torch.cat([work, self._squares(work), wide, shared, torch.ones_like(wide[..., :1])], -1)

    def _table_inputs(self, normalised):
        z = normalised[..., _COLUMNS]
        logs = z * self.std + self.mean
        dim, rows, pooling, reuse, unique, _ = z.unbind(-1)
        d, p, u = logs[..., 0].exp(), logs[..., 2].exp(), logs[..., 4].exp()
        bins = (normalised[..., 4:21] * self.bin_std + self.bin_mean).clamp(min=0)
        mass = bins * (2.0 ** torch.arange(17))
        mass = mass / mass.sum(-1, keepdim=True).clamp(min=1e-12)
        classes = torch.stack([mass[..., i:j].sum(-1) for i, j in CFG["classes"]], -1)
        per_row, per_unique = (self.std[0] / self.std[1:5:3]).unbind()
        bytes_u, bytes_r = unique + dim * per_unique, rows + dim * per_row
        gate_u, gate_r = (torch.sigmoid(2 * (each[..., None] + _PLACES)) for each in (bytes_u, bytes_r))
        pc = p[..., None] * classes
        amounts = [torch.stack([torch.ones_like(d), d, d * p.clamp(max=1), u, u * d], -1), pc, pc * d[..., None]]
        if CFG["gates"]:
            amounts += [(p * d)[..., None] * gate_u, p[..., None] * gate_r]
        amounts = torch.cat(amounts, -1) / self.unit
        sizes = torch.stack([dim, pooling, bytes_u, bytes_r], -1)  # [*B, 4]
        steps = (sizes[..., None] + _PLACES).tanh().flatten(-2)
        reuses = (reuse[..., None] + _PLACES).tanh()
        free = torch.cat([reuses, z[..., 3:4], (-logs[..., 3:4]).exp(), (logs[..., 5:6] ).tanh()], -1)
        return logs, amounts, steps, free

    def _work(self, amounts, steps, free):
        return (amounts @ self.price.T) * (steps @ self.step.T + free @ self.free.T).clamp(-8, 8).exp()

    def _squares(self, work):
        return (work[..., 0::2] + work[..., 1::2]).square()

    def _folded(self):
        """exponents, weights and biases for raw logs"""
        mean, std = self.input_mean, self.input_std
        weight = self.hidden_weight / std[..., None]
        bias = self.hidden_bias - (weight * mean[..., None]).sum(1)
        exponent = self.exponent
        constant = -(exponent * mean).sum(1) + mean[:, 0]
        return exponent, constant, weight, bias

    @torch.no_grad()
    def law(self, num_devices: int, curves: Floats | None = None) -> DeviceLaw:
        """`curves` of other collectives than the all-to-all."""

        def array(value: Tensor) -> Floats:
            return np.ascontiguousarray(value.double().numpy(), np.float64)

        latency, own, largest, received = array(self.comm_ms).sum(axis=0).tolist()
        share, size = (num_devices - 1) / num_devices, 6 + INPUTS - 2
        curves = np.zeros((4, CURVE_POINTS)) if curves is None else curves
        curves[ALL_TO_ALL] = largest * share * curve_points()
        exponent, constant, weight, bias = self._folded()
        return DeviceLaw(
            NETWORK,
            width=size + DIMS,
            tables=size + COUNT,
            curves=curves,
            own_ms=own * share - received / num_devices,
            total_ms=received / num_devices,
            fixed_ms=latency,
            hidden_weight=array(weight.movedim(0, 1)).reshape(INPUTS, -1),
            hidden_bias=array(bias).ravel(),
            output_weight=array(self.output_weight),
            scale_ms=array(self.scale_ms * constant.exp()),
            launch_ms=array(self.launch * self.scale_ms),
            figures=np.concatenate([array(exponent).ravel(), array(self.power)]),
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
        first = self.measured_on is None
        with torch.no_grad():
            z = data.features[:, _COLUMNS] * self.std + self.mean
            self.narrowest = z[:, 0].exp().min().round()
            self.exchanges.learn_placements(data, data.sums(self.encode)[..., DIMS])
            if first:
                self.calibrate(data)
        parameters = dict(self.named_parameters())
        names = list(parameters)
        prior = {
            "price": (None, CFG["price"] / nprices(), 0.0),
            "step": (0.0, CFG["step"], 0.0),
            "free": (0.0, CFG["free"], None),
            "launch": (0.3, CFG["launch"], 0.0),
            "exponent": (None, CFG["exponent"], 0.0),
            "hidden_weight": (0.0, CFG["weight"], 0.0),
            "hidden_bias": (0.0, CFG["bias"], None),
            "output_weight": (0.0, CFG["output"], 0.0),
            "noise": (-3.0, 2.0, None),
            "power": (3.0, CFG["power"], 1.0),
        }
        loss = self.loss_of(data)
        sizes = [parameters[n].numel() for n in names]
        unit = np.concatenate([np.full(k, prior[n][1]) for n, k in zip(names, sizes)])
        centre = []
        for n, k in zip(names, sizes):
            c = prior[n][0]
            if n == "price": centre.append(self.price_centre().flatten().numpy())
            elif n == "exponent":
                own = torch.zeros(2, INPUTS); own[:, 0] = 1.0; centre.append(own.flatten().numpy())
            else: centre.append(np.full(k, c))
        centre = np.concatenate(centre)
        bounds = [(None if prior[n][2] is None else prior[n][2] / prior[n][1], None) for n, k in zip(names, sizes) for _ in range(k)]
        tensors = [parameters[n] for n in names]

        def objective(scaled):
            vector_to_parameters(torch.from_numpy(scaled * unit).float(), tensors)
            with torch.enable_grad():
                value = loss()
            slopes = torch.cat([each.flatten() for each in torch.autograd.grad(value, tensors)]).double().numpy()
            away = scaled - centre / unit
            return float(value.item()) + 0.5 * float(away @ away), away + slopes * unit

        start = parameters_to_vector(tensors).detach().double().numpy() / unit
        found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": CFG["iters"], "maxfun": 2 * CFG["iters"]})
        objective(found.x)
        self.iterations = found.nit
        error_ms = (self.phases_ms(data.sums(self.encode)) - data.phases_ms).sum(-1)
        error_ms /= torch.maximum(data.phases_ms.sum(-1), 0.2 * data.overall_ms[:, None])
        self.spread = _NORMAL * error_ms[data.holding].abs().median()
        value = float(found.fun)
        if not math.isfinite(value):
            raise TrainingDivergedError(f"the cost network's loss became {value}")
        return value

    @torch.no_grad()
    def calibrate(self, data: CostData) -> None:
        _, amounts, _, _ = self._table_inputs(data.features)
        self.unit *= amounts.mean(0)
        sums = data.sums(self.encode)[data.holding]
        for phase in range(2):
            logs = self._device_inputs(sums[:, 2 * phase : 2 * phase + 2], sums[:, 4 + phase], self._shared(sums), self.power[phase])
            self.input_mean[phase], self.input_std[phase] = logs.mean(0), logs.std(0).clamp(min=0.05)
        predicted, measured = self.phases_ms(data.sums(self.encode))[..., COMPUTE], data.phases_ms[..., COMPUTE]
        self.scale_ms *= measured.mean(dim=(0, 1)).clamp(min=1e-4) / predicted.mean(dim=(0, 1))

    def _shared(self, sums):
        return torch.cat([(sums[..., _LOGS] + LEAST_SUM).log(), sums[..., WIDE].clamp(max=1)], -1)

    def _device_inputs(self, work, square, shared, power):
        logs = (work + LEAST_WORK).log()
        own = torch.stack([(power * logs).logsumexp(-1) / power, 0.5 * (square + LEAST_SQUARE).log()], -1)
        return torch.cat([own, shared], -1)

    @torch.no_grad()
    def loss_of(self, data: CostData) -> Callable[[], Float[Tensor, ""]]:
        held, sums = data.holding, data.sums(self.encode)
        _, amounts, steps, free = self._table_inputs(data.features)
        assignment, measured_ms = data.assignment[held], data.phases_ms[held]  # [N, P], [N, 4]
        scale_ms = torch.maximum(data.phases_ms.sum(-1), 0.2 * data.overall_ms[:, None])[held]
        comm_ms = (comm_inputs(sums[..., DIMS]) @ self.comm_ms.T)[held]
        comm_error = (comm_ms - measured_ms[:, 1:3]).sum(1) / scale_ms  # [N]
        idle_error = -measured_ms[:, COMPUTE].T / scale_ms  # [2, N]
        per_unit = self.scale_ms[:, None] / scale_ms  # [2, N]
        shared = self._shared(sums[held])  # [N, 6]
        nu, temper, floor = CFG["nu"], CFG["temper"], CFG["floor"]

        def loss() -> Float[Tensor, ""]:
            work = self._work(amounts, steps, free)  # [P, 4]
            total = assignment @ torch.cat([work, self._squares(work)], 1)  # [N, 6]
            inputs = torch.stack([self._device_inputs(total[:, 2 * k : 2 * k + 2], total[:, 4 + k], shared, self.power[k]) for k in range(2)])  # [2, N, I]
            x = (inputs - self.input_mean[:, None]) / self.input_std[:, None]
            hidden = torch.baddbmm(self.hidden_bias[:, None], x, self.hidden_weight)  # [2, N, H]
            up, down = hidden[..., :_UNITS_EACH].relu(), hidden[..., _UNITS_EACH:].clamp(max=0)
            bend = (torch.cat([up, down], -1) * self.output_weight[:, None]).sum(-1)
            log_cost = ((inputs - self.input_mean[:, None]) * self.exponent[:, None]).sum(-1) + self.input_mean[:, :1] + bend
            compute = self.launch[:, None] + log_cost.exp()
            error = idle_error + compute * per_unit  # [2, N]
            errors = torch.cat([error, (error.sum(0) + comm_error)[None]])  # [3, N]
            scale = self.noise.exp() + floor
            nll = (nu + 1) / 2 * torch.log1p((errors / scale[:, None]).square() / nu) + scale.log()[:, None]
            return temper * (nll * torch.tensor([[0.5], [0.5], [1.0]])).sum()

        return loss
