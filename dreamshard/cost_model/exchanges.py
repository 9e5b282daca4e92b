"""All-to-alls: which to measure alone, and a cost network's knowledge of them.

For a task's topology the network needs the weights of `comm_inputs`. They come from the best that is known: the placements
measured on that topology, unless the task's devices hold far more than theirs; else the all-to-alls measured on it; else a
model of the links fitted to all of these. Either is taken as linear around the task's balanced placement. If no
all-to-alls were measured alone, the placements stand for every topology.

Bytes are those that leave a device for others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamshard.cost_model.cost_network import CostData
from dreamshard.costs import Exchange, ExchangeSample, MeasuredOn
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.tasks import PlacementTask

Array = NDArray[np.float64]
_BYTES, _TIMES = 2, slice(3, 5)  # columns of points, after devices and devices per host: milliseconds both ways
_COMM = slice(1, 3)  # of `PHASES`
_ALONE_WEIGHT = 0.1  # of the relative error of an all-to-all measured alone, next to a placement's
_NOISE = 0.03  # relative error of a measurement, next to which what a preset says counts less
_REACH = 2.0  # how much wider than balanced placements others are, or than measured ones those to which a fit applies
HUNDRED = 100  # dims, weights or lookups per sample in a unit of loads
NUM_COMM_INPUTS, _NEIGHBOURS = 6, 4  # inputs, and the first that is about neighbours
_RIDGE = 1e-6  # decides between explanations that fit equally well, and nothing else
_REWEIGHTED = 5  # fits of placements' all-to-alls, each with the weights of the errors before it
FREEDOM = 4.0  # degrees of freedom of Student's t: errors five times their scale hardly pull
NORMAL = 1.4826  # standard errors in a median absolute error, of normal errors

_LEAST_BYTES, _STEP = 2**14, 3  # of designed exchanges: below, latency alone counts; from one size to the next


class ExchangeShape(NamedTuple):
    """Equal devices on equal hosts, 1 to all devices per host."""

    num_devices: int
    devices_per_host: int

    @classmethod
    def of(cls, num_devices: int, devices_per_host: int | None, host_devices: int | None) -> "ExchangeShape":
        """`devices_per_host` of None stands for `host_devices`, the hardware's; if that is None too, one host has all."""
        return cls(num_devices, min(num_devices, devices_per_host or host_devices or num_devices))

    @property
    def crosses_network(self) -> bool:
        """Whether there are several hosts."""
        return self.num_devices > self.devices_per_host


def exchanges_for(tasks: Sequence[PlacementTask], batch_size: int, more_devices: Iterable[int] = ()) -> list[Exchange]:
    """Exchanges that describe the links for placements of tasks on the same kind of hosts.

    Of powers of two devices up to the tasks' own, and `more_devices`; up to twice the bytes of balanced placements. Sizes
    and numbers of devices are from fixed grids, so that other trainings ask for mostly the same exchanges.
    """
    most = max(task.num_devices for task in tasks)
    counts = {*(2**power for power in range(1, most.bit_length())), most, *more_devices} - {1}
    widest = max(int(task.tables.sent_dim.sum()) / task.num_devices for task in tasks)
    most_bytes = round(_REACH * widest * VECTOR_BYTES * batch_size)
    return designed_exchanges(counts, tasks[0].devices_per_host, most_bytes)


def designed_exchanges(counts: Iterable[int], devices_per_host: int | None, most_bytes: int) -> list[Exchange]:
    """Exchanges of each number of devices in equal parts, of up to `most_bytes` or more from each device.

    `devices_per_host` of None stands for as many as the hardware has.
    """
    sizes = [_LEAST_BYTES]
    while sizes[-1] < most_bytes:
        sizes.append(_STEP * sizes[-1])
    return [
        Exchange(sent_bytes=torch.full((count,), size), devices_per_host=devices_per_host)
        for count in sorted(set(counts))
        for size in sizes
    ]


def comm_inputs(dims: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D 6"]:
    """Inputs of an all-to-all in hundreds of dims.

    They are 1, dims that leave a device, the most that leave any, the mean, dims that leave the device before it, and the
    most that leave two neighbours, on average; devices are in a ring. Dims that arrive count as the mean: they lack a
    device's own part of it, which shrinks with more devices.
    """
    count, before = dims.shape[-1], dims.roll(1, -1)
    share = (count - 1) / count
    largest, pair = (of.max(dim=-1, keepdim=True).values.expand_as(dims) for of in (dims, (dims + before) / 2))
    mean = dims.mean(dim=-1, keepdim=True).expand_as(dims)
    leaving = (dims * share, largest * share, mean * share, before * share, pair * share)
    return torch.stack([torch.ones_like(dims), *leaving], dim=-1)


class ExchangeModel(nn.Module):
    """Milliseconds of all-to-alls; 0 before it learns.

    Attributes:
        points: `[K, 5]` all-to-alls measured alone; loading a state replaces them by as many as that has.
        fitted_ms: `[2, 6]` weights of `comm_inputs` fitted to placements, forward and backward.
        fitted_to: `[2]` `ExchangeShape` of these placements.
        widest_bytes: that left a device of theirs.
        host_devices: devices on a host of the hardware; 0 if all devices share a host.
        batch_size: of the placements; 0 before there are any.
        links: `fit_links` of the points.
        curves: logarithms of bytes `[N]`, and times relative to the links' `[2, N]`, of each topology with points. The links
            bridge sizes; the points tell where a library changes its protocol.
    """

    points: Tensor
    fitted_ms: Tensor
    fitted_to: Tensor
    widest_bytes: Tensor
    host_devices: Tensor
    batch_size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("points", torch.zeros(0, 5).double())
        self.register_buffer("fitted_ms", torch.zeros(2, NUM_COMM_INPUTS))
        self.register_buffer("fitted_to", torch.tensor([0, 0]))
        self.register_buffer("widest_bytes", torch.zeros(()).double())
        self.register_buffer("host_devices", torch.tensor(0))
        self.register_buffer("batch_size", torch.tensor(0))
        self.register_load_state_dict_pre_hook(_take_points)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(lambda module, _: module._index())  # type: ignore[no-untyped-call]
        self._index()

    def topology(self, of: PlacementTask | MeasuredOn) -> ExchangeShape:
        """The topology of a task, or of measurements, on this hardware."""
        return ExchangeShape.of(of.num_devices, of.devices_per_host, int(self.host_devices) or None)

    def knows(self, shape: ExchangeShape) -> bool:
        """Whether all-to-alls of exactly this topology were measured."""
        return shape in self.curves or shape == tuple(self.fitted_to.tolist())

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Replace all that was known of all-to-alls alone; samples must be of one hardware."""
        self.host_devices = torch.tensor(max((sample.host_devices or 0 for sample in samples), default=0))
        rows = []
        for sample in samples:
            count, times = sample.exchange.num_devices, (sample.forward_ms, sample.backward_ms)
            shape = ExchangeShape.of(count, sample.exchange.devices_per_host, sample.host_devices)
            leaves = int(sample.exchange.sent_bytes.max()) * (count - 1) / count
            rows.append([*shape, leaves, *(float(phase_ms.mean()) for phase_ms in times)])
        self.points = torch.tensor(sorted(rows), dtype=torch.float64).reshape(-1, 5)
        self._index()

    def learn_placements(self, data: CostData, dims: Float[Tensor, "S D"]) -> None:
        """Replace all that was known of all-to-alls as phases of placements; `dims` in hundreds on each device.

        `fitted_ms` fits errors relative to the sample's overall cost. All-to-alls measured alone on this topology decide
        what placements leave open: if all have as many dims, these explain the same as a constant. Links that neighbours
        share count only if with them the error's scale falls by about two of its standard errors.
        """
        origin, count = data.measured_on, dims.shape[1]
        self.batch_size = torch.tensor(origin.batch_size)
        self.fitted_to = torch.tensor(self.topology(origin))
        self.widest_bytes = dims.max().double() * (count - 1) / count * self._unit_bytes
        points = self.points[(self.points[:, :_BYTES] == self.fitted_to).all(dim=1)].numpy()
        alone, alone_ms = points[:, _BYTES] / self._unit_bytes, points[:, _TIMES]  # [K], [K, 2]
        equal = np.stack([np.ones_like(alone), *[alone] * (NUM_COMM_INPUTS - 1)], axis=1)  # [K, 6]
        inputs = comm_inputs(dims)[data.seen].double().numpy()  # [N, 6]
        trust = data.weight.sqrt() * _NOISE / (_NOISE + data.error)
        weight, known = (
            (trust / data.overall_ms[:, None])[data.seen].double().numpy(),
            float(trust[data.seen].square().sum()),
        )
        fitted = []
        for measured, even_ms in zip(data.phases_ms[data.seen][:, _COMM].double().numpy().T, alone_ms.T, strict=True):
            weights = np.concatenate([weight, _ALONE_WEIGHT / even_ms.clip(min=1e-6)])
            targets = np.concatenate([measured, even_ms]) * weights
            weighted = np.concatenate([inputs, equal]) * weights[:, None]
            of_all, error = _robust_fit(weighted, targets)
            of_devices, larger = _robust_fit(weighted * (np.arange(NUM_COMM_INPUTS) < _NEIGHBOURS), targets)
            fitted.append(of_all if error < larger * (1 - 2 / math.sqrt(max(known, 1.0))) else of_devices)
        self.fitted_ms = torch.tensor(np.array(fitted)).float()

    def weights_ms(self, shape: ExchangeShape, sum_dims: float) -> Float[Tensor, "2 6"]:
        """Weights of `comm_inputs` for placements of tables of `sum_dims` together.

        `sum_dims` of another batch than that of the measured placements count in proportion.
        """
        count = shape.num_devices
        if count == 1 or not self.batch_size:
            return torch.zeros(2, NUM_COMM_INPUTS)
        weights = self.fitted_ms.double()
        fitted = ExchangeShape(*self.fitted_to.tolist())
        if shape != fitted:  # whose neighbours may share other links
            weights[:, 1:3] += weights[:, 4:]
            weights[:, 4:] = 0
            if shape.crosses_network and not fitted.crosses_network:
                # the slowest link decides there, and not what all send together
                weights[:, 2] += weights[:, 3]
                weights[:, 3] = 0
        balanced = max(sum_dims / HUNDRED * self._unit_bytes * (count - 1) / count**2, 1.0)
        if balanced <= self._fit_reaches_bytes(shape):
            return weights.float()
        here, ahead = self._alone_ms(shape, np.array([1.0, _REACH]) * balanced)
        slope = ((ahead - here) / ((_REACH - 1) * balanced)).clip(0, here / balanced)  # [2] per byte
        slopes = weights[:, 1:]
        slopes[:, 1] += _RIDGE  # by the largest if the placements tell nothing
        per_unit = torch.from_numpy(slope * self._unit_bytes)[:, None] * slopes / slopes.sum(dim=1, keepdim=True)
        return torch.cat([torch.from_numpy(here - slope * balanced)[:, None], per_unit], dim=1).float()

    def even_ms(self, shape: ExchangeShape, dims: Float[Tensor, " N"]) -> Float[Tensor, "N 2"]:
        """Milliseconds, forward and backward, of all-to-alls of these dims on every device; 0 for none."""
        share = (shape.num_devices - 1) / shape.num_devices
        if not share or not self.batch_size:
            return torch.zeros(len(dims), 2).double()
        units, weights = share * dims[:, None] / HUNDRED, self.fitted_ms.double()
        sent_bytes = units * self._unit_bytes  # [N, 1]
        fitted_ms = weights[:, 0] + weights[:, 1:].sum(dim=1) * units
        alone_ms = torch.from_numpy(self._alone_ms(shape, sent_bytes[:, 0].numpy()))
        return torch.where(sent_bytes <= self._fit_reaches_bytes(shape), fitted_ms, alone_ms) * (dims > 0)[:, None]

    def _fit_reaches_bytes(self, shape: ExchangeShape) -> float:
        """Bytes that leave a device, up to which the fit to placements holds; beyond them, all-to-alls measured alone do."""
        if not self.curves:
            return math.inf
        if shape != tuple(self.fitted_to.tolist()):
            return -math.inf
        return _REACH * float(self.widest_bytes) if shape in self.curves else math.inf

    def _alone_ms(self, shape: ExchangeShape, sizes: Array) -> Array:
        """`[N, 2]` milliseconds, forward and backward, of `[N]` bytes that leave a device."""
        log_bytes, ratios = self.curves.get(shape, (np.zeros(1), np.ones((2, 1))))
        if shape not in self.curves and not self.links.any(axis=(0, 2)).all():  # all by the links that were measured
            shape = shape._replace(devices_per_host=1 if self.links[:, 1].any() else shape.num_devices)
        ratio = np.stack([np.interp(np.log(sizes.clip(min=1)), log_bytes, curve) for curve in ratios])
        times_ms: Array = ratio * links_ms(self.links, np.array([[*shape, size] for size in sizes]))
        return times_ms.T

    @property
    def _unit_bytes(self) -> float:
        """Of a unit of `comm_inputs`."""
        return float(HUNDRED * VECTOR_BYTES * int(self.batch_size))

    def _index(self) -> None:
        points = self.points.numpy()
        self.links = fit_links(points)
        relative = points[:, _TIMES].T / links_ms(self.links, points).clip(min=1e-12)
        self.curves = {}
        for shape in np.unique(points[:, :_BYTES], axis=0):
            at_shape = (points[:, :_BYTES] == shape).all(axis=1)
            self.curves[ExchangeShape(*map(int, shape))] = np.log(points[at_shape, _BYTES]), relative[:, at_shape]


def _robust_fit(inputs: Array, targets: Array) -> tuple[Array, float]:
    """Weights `[X]` that are not negative, and the scale of the errors, by the likelihood of Student's t.

    Measurements that a burst disturbed hardly count.
    """
    weight = np.ones(len(targets))
    for _ in range(_REWEIGHTED):
        fit, _ = scipy.optimize.nnls(inputs * weight[:, None], targets * weight)
        error = inputs @ fit - targets
        scale = max(NORMAL * float(np.median(np.abs(error))), 1e-12)
        weight = np.sqrt((FREEDOM + 1) / (FREEDOM + (error / scale) ** 2))
    return fit, scale


def fit_links(points: Array) -> Array:
    """`[2, 2, 4]` weights of `link_inputs`, forward and backward, for the links of a host and the network.

    They are not negative, and have the least squared relative error over the points. One host says nothing of a network, and
    many hosts hardly anything of the links of one.
    """
    links = np.zeros((2, 2, 4))
    for link in range(2):
        chosen = points[(points[:, 0] > points[:, 1]) == bool(link)]
        inputs = link_inputs(chosen, link)
        for phase, measured_ms in enumerate(chosen[:, _TIMES].T):
            relative = inputs[measured_ms > 0] / measured_ms[measured_ms > 0, None]
            size = np.linalg.norm(relative, axis=0).clip(min=1e-300)
            ridge = np.sqrt(_RIDGE) * np.eye(4)
            target = np.concatenate([np.ones(len(relative)), np.zeros(4)])
            links[phase, link] = scipy.optimize.nnls(np.concatenate([relative / size, ridge]), target)[0] / size
    return links


def links_ms(links: Array, points: Array) -> Array:
    """`[2, N]` milliseconds, forward and backward, of points `[N, 3]` or with more columns.

    Links of the host and the network run at once, so the slower of them counts.
    """
    inputs = np.stack([link_inputs(points, link) for link in range(2)])  # [2, N, 4]
    return np.einsum("plx,lnx->pln", links, inputs).max(axis=1)


def link_inputs(points: Array, link: int) -> Array:
    """`[N, 4]` terms of the host's links (0) or the network (1); 0 without peers there.

    A constant, the number of peers, their share of the bytes, and the square root of bytes times peers, since small messages
    reach less of the bandwidth.
    """
    devices, on_a_host, num_bytes = points[:, : _BYTES + 1].T
    peers = devices - on_a_host if link else on_a_host - 1
    share = num_bytes * peers / (devices - 1)
    return np.stack([peers > 0, peers, share, np.sqrt(share * peers)], axis=1).astype(np.float64)


def _take_points(model: ExchangeModel, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Allocate as many points as the state that is about to be loaded has."""
    model.points = torch.empty_like(state.get(f"{prefix}points", model.points))
