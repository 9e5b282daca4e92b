"""The structured cost network: positive work of tables, added up by resource, and what a fused call makes of the sums.

Physics is in the form, so that a search finds few errors to use: one more table never makes a device cheaper, and neither do
more lookups, rows or columns of a table, in any phase and with any weights, in the setting that it was fitted in. For others
a shard's work is scaled by `work_ratios`, which may fall with rows and columns.
"""

import math
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    CURVE_VALUES,
    DIMS,
    DISTINCT,
    LEAST,
    NETWORK,
    PLAIN,
    SQUARES,
    SUMS,
    TABLES,
    WIDE,
    WIDE_DIMS,
    DeviceLaw,
    Floats,
    NetworkLaw,
    computes_ms,
)
from dreamshard.cost_model.cost_network import (
    BACKWARD,
    BINS,
    COMPUTE,
    DISTINCT_ROWS,
    FORWARD,
    HOT,
    LOG_DIM,
    LOG_POOLING,
    LOG_REUSE,
    LOG_ROWS,
    LOG_UNIQUE,
    PHYSICAL,
    VECTORS,
    CostData,
    CostNetwork,
    Normaliser,
    TrainingDivergedError,
    lookups_by_bin,
)
from dreamshard.cost_model.exchanges import FREEDOM, HUNDRED, NORMAL, ExchangeModel, comm_inputs
from dreamshard.tasks import PlacementTask

_LOG_WIDE = torch.tensor(WIDE_DIMS).log()
_BINS_OF_CLASS = ((0, 1), (1, 6), (6, 11), (11, 17))
"""Bins of rows looked up once, up to 32, 1,024 and more times in a batch: a lookup has a price by class."""
_PER_LOOKUP = [0, 3, 5, 6, 7, 8]  # amounts that take time whatever the dim
_PER_BYTE = [1, 2, 4, 9, 10, 11, 12]  # and those in proportion to it
_PHASE_OF_WORK = [FORWARD, FORWARD, BACKWARD, BACKWARD, FORWARD, BACKWARD]
_NUM_AMOUNTS = len(_PER_LOOKUP) + len(_PER_BYTE)
_LOOKUPS, _LOOKUPS_TIMES_DIM = slice(5, 9), slice(9, 13)  # of these, by class
_PLACES = torch.arange(-1.5, 1.51, 0.25)  # of steps, in deviations of the training pool from its mean
_STEEPNESS = 6.0  # of a step: it is done within half a deviation
_STEPS = 4 * len(_PLACES)
_MOST_EXPONENT = 8.0  # of the factor of a table's work: a table far outside the pool keeps a finite cost
_INPUTS = 2 + len(SUMS) + len(WIDE_DIMS)  # of a device: work, its 2-norm, tables, distinct weights, wide tables

_ITERATIONS = 100  # of L-BFGS in a fit; those of a training's rounds go on from each other
_LEAST_ERROR = 0.004  # of a device's cost: no clock is better, and no phase counts without limit
_IDLE = 0.2  # of the slowest device's cost, to which errors of idler ones are relative


class Prior(NamedTuple):
    """Distribution of a parameter before any sample; `least` bounds those that are not negative.

    It is normal, or with `exponential` that of a mean `scale`: then a rise is as likely in one step as in several.
    """

    shape: tuple[int, ...]
    centre: float
    scale: float
    least: float = -math.inf
    exponential: bool = False


PRIORS = {
    "price": Prior((4, _NUM_AMOUNTS), 0.0, 1 / _NUM_AMOUNTS, 0.0),  # around equal prices of a resource's own amounts
    "plain": Prior((2, _NUM_AMOUNTS), 0.0, 1 / _NUM_AMOUNTS, 0.0, exponential=True),
    "step": Prior((6, _STEPS), 0.0, 0.05, 0.0, exponential=True),  # a price rises by 1.1 at each, on average
    "reuse": Prior((6, 3), 0.0, 0.3),
    "launch": Prior((2,), 0.3, 1.0, 0.0),  # in the work of an average table
    "power": Prior((2,), 3.0, 1.5, 1.0),  # 1: resources are used one after the other; large: at once
    "exponent": Prior((4, _INPUTS, 2), 0.0, 0.1, 0.0),  # around 1 for work, and 0
    "noise": Prior((3,), -3.0, 2.0),  # logarithm of the relative error of forward, backward and a whole device
}
"""Of the parameters of a fit, which maximises their posterior."""


class StructuredCostNetwork(CostNetwork):
    """Compute of a device, per phase, from the sums over its tables:

        scale x (launch + plain + (bytes^power + lookups^power)^(1 / power))

    - A table's work on each of two resources, moving bytes and issuing lookups, is a sum of amounts (per table, dim,
      distinct row, lookup of a row that is looked up once, some, many and very many times; each alone and times dim) at
      prices that are not negative, times `exp` of steps that rise and of how often rows are looked up again.
    - Steps are `tanh` of the logarithms of dim, lookups, bytes of distinct rows and of all rows, at 13 places of the training
      pool: a cache holds all, some or none of the distinct rows, an address cache reaches all or little of a table. Which
      size decides is unknown, so the prior leaves it to the samples where few steps rise. Beyond them all is level.
    - What the fused call makes of each resource's sum is a product of powers, `sum^e0 x 2-norm^e1 x tables^e2 x ...`, with
      exponents that are not negative: crowding by the number of tables or distinct bytes, a large table that does
      not overlap, and more threads per row where a table is wider than 32 or 64. Each has one exponent below the mean of
      the measured devices and one above: a device with little work is not filled, and a crowd begins somewhere.
    - Plain work, at prices and steps of its own, adds up whatever else the device does: kernels that run by themselves.

    Communication is linear in `comm_inputs`, by `exchanges`. `compiled.network_ms` is the formula of a device.

    Attributes:
        price: `[4, A]` of amounts, of forward bytes, forward lookups, backward bytes, backward lookups.
        plain: `[2, A]` prices of plain work, forward and backward.
        step: `[6, 52]` rise of all these at each step.
        reuse: `[6, 3]` effect of repeated lookups; the only weights of any sign.
        launch: `[2]` of a device with tables.
        power: `[2]`.
        exponent: `[4, 6, 2]` of each resource by inputs below and above `centre`.
        noise: `[3]` logarithms of relative errors.
        unit: `[A]` mean amounts of the tables that it was first fitted to.
        centre: `[4, 6]` mean inputs of their devices.
        narrowest: columns of the narrowest table that was measured: fewer are an extrapolation.
    """

    mean: Tensor
    std: Tensor
    unit: Tensor
    centre: Tensor
    scale_ms: Tensor
    narrowest: Tensor
    price: nn.Parameter
    plain: nn.Parameter
    step: nn.Parameter
    reuse: nn.Parameter
    launch: nn.Parameter
    power: nn.Parameter
    exponent: nn.Parameter
    noise: nn.Parameter

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self.register_buffer("mean", normaliser.mean.clone())
        self.register_buffer("std", normaliser.std.clone())
        self.register_buffer("unit", torch.ones(_NUM_AMOUNTS))
        self.register_buffer("centre", torch.zeros(4, _INPUTS))
        self.register_buffer("scale_ms", torch.ones(2))
        self.register_buffer("narrowest", torch.ones(()))
        starts = {"launch": 0.1, "step": 0.005, "plain": 0.1 / _NUM_AMOUNTS}  # else the prior's mode
        for name, value in _prior_centres().items():
            value = torch.full_like(value, starts[name]) if name in starts else value
            self.register_parameter(name, nn.Parameter(value))
        self.exchanges = ExchangeModel()
        self.task_comm_ms: Tensor | None = None  # in a copy for one task

    @property
    def comm_ms(self) -> Float[Tensor, "2 6"]:
        """Weights of `comm_inputs`, forward and backward: of the task, or of the placements that it was fitted to."""
        return self.exchanges.fitted_ms if self.task_comm_ms is None else self.task_comm_ms

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """The columns of a load, in the order of `compiled`."""
        amounts, steps, reuses = self._table_inputs(normalised)
        work = self._work(amounts, steps, reuses)
        logs = self._physical(normalised)
        wide = (logs[..., :1] > _LOG_WIDE).to(work.dtype)  # [*B, 2]
        distinct = logs[..., LOG_DIM] + logs[..., LOG_UNIQUE]
        shared = torch.stack([distinct, logs[..., LOG_DIM]], -1).exp() / HUNDRED
        if ratios is not None:
            work = work * ratios[..., _PHASE_OF_WORK]
            shared = shared * ratios[..., [DISTINCT_ROWS, VECTORS]]
        return torch.cat([work, _squares(work), wide, shared, torch.ones_like(wide[..., :1])], -1)

    def _physical(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B 6"]:
        """Columns `PHYSICAL` as they were."""
        return normalised[..., PHYSICAL] * self.std[PHYSICAL] + self.mean[PHYSICAL]

    def _table_inputs(
        self, normalised: Float[Tensor, "*B F"]
    ) -> tuple[Float[Tensor, "*B A"], Float[Tensor, "*B 52"], Float[Tensor, "*B 3"]]:
        """Amounts in `unit`, steps, and figures of reuse."""
        logs = self._physical(normalised)
        dim, pooling, unique = (logs[..., at].exp() for at in (LOG_DIM, LOG_POOLING, LOG_UNIQUE))
        by_bin = lookups_by_bin(normalised[..., BINS] * self.std[BINS] + self.mean[BINS])
        lookups = pooling[..., None] * torch.stack([by_bin[..., of:to].sum(-1) for of, to in _BINS_OF_CLASS], -1)
        counts = torch.stack([torch.ones_like(dim), dim, dim * pooling.clamp(max=1), unique, unique * dim], -1)
        amounts = torch.cat([counts, lookups, lookups * dim[..., None]], -1) / self.unit
        z, per_z = normalised[..., PHYSICAL], self.std[PHYSICAL]
        # bytes of distinct rows, and of all rows
        in_bytes = (z[..., at] + z[..., LOG_DIM] * per_z[LOG_DIM] / per_z[at] for at in (LOG_UNIQUE, LOG_ROWS))
        sizes = torch.stack([z[..., LOG_DIM], z[..., LOG_POOLING], *in_bytes], -1)
        again = z[..., LOG_REUSE, None]
        firsts, hot = (-logs[..., LOG_REUSE, None]).exp(), logs[..., HOT, None]
        reuses = torch.cat([again, firsts, hot.tanh()], -1)
        return amounts, (_STEEPNESS * (sizes[..., None] - _PLACES)).tanh().flatten(-2), reuses

    def _work(
        self, amounts: Float[Tensor, "*B A"], steps: Float[Tensor, "*B 52"], reuses: Float[Tensor, "*B 3"]
    ) -> Float[Tensor, "*B 6"]:
        """Work of tables by phase and resource, and their plain work by phase."""
        factor = (steps @ self.step.T + reuses @ self.reuse.T).clamp(-_MOST_EXPONENT, _MOST_EXPONENT).exp()
        return (amounts @ torch.cat([self.price, self.plain]).T) * factor

    @torch.no_grad()
    def law(self, num_devices: int, curves: Floats | None = None) -> DeviceLaw:
        """`curves` of other collectives than the all-to-all."""

        def array(value: Tensor) -> Floats:
            return np.ascontiguousarray(value.double().numpy(), np.float64)

        latency, own, largest, mean, before, pair = array(self.comm_ms).sum(axis=0).tolist()
        share = (num_devices - 1) / num_devices
        curves = np.zeros((4, len(CURVE_VALUES))) if curves is None else curves
        curves[ALL_TO_ALL] = largest * share * CURVE_VALUES
        network = NetworkLaw(*map(array, (self.scale_ms, self.launch, self.power, self.centre, self.exponent)))
        return DeviceLaw(
            NETWORK,
            width=DIMS,
            tables=TABLES,
            curves=curves,
            width_ms=own * share,
            before_ms=before * share,
            pair_ms=pair * share / 2,
            total_ms=mean * share / num_devices,
            fixed_ms=latency,
            network=network,
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

    def fit(
        self, data: CostData, optimizer: torch.optim.Optimizer | None, *steps: Any, iterations: int = _ITERATIONS
    ) -> float:
        """Fit communication, and compute by L-BFGS on all samples, from the parameters as they are; see `CostNetwork.fit`.

        The parameters maximise their posterior: `PRIORS`, and Student's t for the relative errors of each phase and of whole
        devices, whose scales are fitted as well. So noise decides how far samples move the parameters from the priors, and
        single measurements that a burst disturbed hardly count.

        Returns:
            the negative logarithm of the posterior, up to a constant.
        """
        with torch.no_grad():
            self.narrowest = self._physical(data.features)[:, LOG_DIM].exp().min().round()
            self.exchanges.learn_placements(data, data.sums(self.encode)[..., DIMS])
            if self.measured_on is None:
                self.calibrate(data)
        parameters = [self.get_parameter(name) for name in PRIORS]
        priors = [prior[2:] for prior in PRIORS.values() for _ in range(math.prod(prior.shape))]
        scales, least, exponential = np.transpose(priors)
        centres = parameters_to_vector(_prior_centres().values()).double().numpy() / scales
        misfit = self.misfit_of(data)

        def objective(scaled: Floats) -> tuple[float, Floats]:
            vector_to_parameters(torch.from_numpy(scaled * scales).float(), parameters)
            with torch.enable_grad():
                value = misfit()
            slopes = torch.cat([part.flatten() for part in torch.autograd.grad(value, parameters)]).double().numpy()
            away = scaled - centres
            value_of_priors = np.where(exponential, away, away * away / 2).sum()
            return value.item() + float(value_of_priors), slopes * scales + np.where(exponential, 1.0, away)

        start = parameters_to_vector(parameters).detach().double().numpy() / scales
        options, bounds = {"maxiter": iterations, "maxcor": 30}, scipy.optimize.Bounds(least / scales)
        fit = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        value = objective(fit.x)[0]
        if not math.isfinite(value):
            raise TrainingDivergedError(
                f"the cost network's loss became {value}; the last checkpoint is intact: look for extreme cost samples"
            )
        if self.measured_on is None:
            self.relative_error = self.relative_error_of(data)
        return value

    @torch.no_grad()
    def relative_error_of(self, data: CostData) -> Float[Tensor, ""]:
        """Relative standard error of a device's predicted cost, without what all devices of a placement have in common."""
        count = data.holding.sum(-1, keepdim=True)  # [S, 1]
        error_ms = (self.phases_ms(data.sums(self.encode)) - data.phases_ms).sum(-1)
        error = torch.where(data.holding, error_ms / _compared_ms(data), 0.0)
        centred = (error - error.sum(-1, keepdim=True) / count) * (count / (count - 1)).sqrt()
        several = data.holding & (count > 1)
        return NORMAL * centred[several].abs().median() if several.any() else torch.zeros(())

    def learn_relative_error(self, unseen: CostData) -> None:
        """Half of the squared error is from placements that were not fitted to, the other half from earlier ones."""
        self.relative_error = ((self.relative_error.square() + self.relative_error_of(unseen).square()) / 2).sqrt()

    @torch.no_grad()
    def calibrate(self, data: CostData) -> None:
        """Set all units, so that training starts near the measured costs."""
        mean = self._table_inputs(data.features)[0].mean(0).clamp(min=1e-9)
        for classes in _LOOKUPS, _LOOKUPS_TIMES_DIM:  # in one unit, or one that hardly occurs would be dear
            mean[classes] = mean[classes].mean()
        self.unit *= mean
        sums = data.sums(self.encode)
        self.centre.copy_(device_inputs(sums[data.holding]).mean(1))
        predicted, measured = (ms[data.seen][:, COMPUTE] for ms in (self.phases_ms(sums), data.phases_ms))
        self.scale_ms *= measured.mean(dim=0).clamp(min=1e-4) / predicted.mean(dim=0)

    @torch.no_grad()
    def misfit_of(self, data: CostData) -> Callable[[], Float[Tensor, ""]]:
        """Negative log likelihood of the samples, as a function of the parameters.

        Errors are relative to the device's cost, at least a fifth of the slowest's, so that idle ones count little. Phases
        count half. Constants of the `N` devices with tables are computed once.
        """
        held, sums = data.holding, data.sums(self.encode)
        table_inputs = self._table_inputs(data.features)
        assignment, measured_ms = data.assignment[held], data.phases_ms[held]  # [N, P], [N, 4]
        compared_ms, others = _compared_ms(data)[held], sums[held][:, WIDE:]
        comm_ms = (comm_inputs(sums[..., DIMS]) @ self.comm_ms.T)[held]
        comm_error = (comm_ms - measured_ms[:, 1:3]).sum(1) / compared_ms  # [N]
        idle_error = -measured_ms[:, COMPUTE].T / compared_ms  # [2, N]
        per_unit = self.scale_ms[:, None] / compared_ms  # [2, N]
        weight, known_error = torch.tensor([[0.5], [0.5], [1.0]]) * data.weight[held], data.error[held] + _LEAST_ERROR

        def misfit() -> Float[Tensor, ""]:
            work = self._work(*table_inputs)  # [P, 6]
            loads = torch.cat([assignment @ torch.cat([work, _squares(work)], 1), others], 1)  # [N, L]
            crowded = crowded_work(loads, self.centre, self.exponent, self.power)
            cost = self.launch[:, None] + loads[:, PLAIN:SQUARES].T + crowded
            error = idle_error + cost * per_unit  # [2, N]
            errors = torch.cat([error, (error.sum(0) + comm_error)[None]])  # [3, N]
            scale = self.noise.exp()[:, None] + known_error
            surprise = (FREEDOM + 1) / 2 * torch.log1p((errors / scale).square() / FREEDOM) + scale.log()
            return (weight * surprise).sum()

        return misfit


def device_inputs(loads: Float[Tensor, "N L"]) -> Float[Tensor, "4 N 6"]:
    """Logarithms that `exponent` weighs, by resource, of loads of devices."""
    squares = loads[:, SQUARES:WIDE].repeat_interleave(2, 1)  # [N, 4]
    own = torch.stack([(loads[:, :PLAIN] + LEAST).log(), 0.5 * (squares + LEAST**2).log()], -1)  # [N, 4, 2]
    shared = torch.cat([(loads[:, SUMS] + LEAST).log(), loads[:, WIDE:DISTINCT].clamp(max=1)], -1)
    return torch.cat([own, shared[:, None].expand(-1, 4, -1)], -1).transpose(0, 1)


def crowded_work(
    loads: Float[Tensor, "N L"],
    centre: Float[Tensor, "4 6"],
    exponent: Float[Tensor, "4 6 2"],
    power: Float[Tensor, " 2"],
) -> Float[Tensor, "2 N"]:
    """What the fused call makes of the work of devices, forward and backward; as `compiled.network_ms`."""
    away = device_inputs(loads) - centre[:, None]
    below, above = exponent[:, None].unbind(-1)
    resources = centre[:, :1] + (torch.where(away > 0, above, below) * away).sum(-1)  # logarithms, [4, N]
    both = power[:, None, None] * resources.unflatten(0, (2, 2))
    return (both.logsumexp(1) / power[:, None]).exp()


def _squares(work: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 2"]:
    """Squared work of each phase without its plain work; the sum is a 2-norm squared."""
    return work[..., :PLAIN].unflatten(-1, (2, 2)).sum(-1).square()


def _compared_ms(data: CostData) -> Float[Tensor, "S D"]:
    """To which errors are relative."""
    return torch.maximum(data.phases_ms.sum(-1), _IDLE * data.overall_ms[:, None])  # NaN if not seen


def _prior_centres() -> dict[str, Tensor]:
    """Of each parameter: every amount of a resource costs alike, and a device costs the sum of its work."""
    centres = {name: torch.full(prior.shape, prior.centre) for name, prior in PRIORS.items()}
    centres["price"][0::2, _PER_BYTE] = 1 / len(_PER_BYTE)
    centres["price"][1::2, _PER_LOOKUP] = 1 / len(_PER_LOOKUP)
    centres["exponent"][:, 0] = 1.0
    return centres
