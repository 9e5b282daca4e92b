"""What a cost network knows of all-to-alls, measured by themselves and as phases of placements.

For a task's topology it yields the weights of `comm_inputs`, from the best that is known of it: the placements measured on
that topology, unless the task's devices hold far more than theirs; else a monotone curve through the all-to-alls measured on
it; else a law of bytes, devices and hosts fitted to everything measured. The latter two are linear around the task's
balanced placement.

Bytes are those that leave a device for others; an *effective* number of bytes weighs what a device itself sends, the most
that any device sends, and what it receives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import take_shapes
from dreamshard.costs import ExchangeSample
from dreamshard.hardware.links import VECTOR_BYTES

Array = NDArray[np.float64]
Time = Callable[[float], float]
"""Milliseconds of an all-to-all by its effective bytes."""

# Columns of `points` and `fits`: topology, then
_WIDTHS, _TIMES = slice(2, 5), slice(5, 7)  # of points: bytes as in `shares`; milliseconds forward and backward
_FIT_BYTES, _FIT_WEIGHTS = slice(2, 4), slice(4, 12)  # of fits: range of the widest device's bytes; weights both ways
_COMM = [1, 2]  # of PHASES: forward_comm, backward_comm
_OUTLIER = 2.5  # medians of the absolute error, above which a placement counts less
_REACH = 2.0  # how much wider than measured placements a balanced one may be for their fit to hold
_PSEUDO_POINTS = 3  # of a fit, in the data of the law
_HUNDRED = 100  # dims in a unit of comm_inputs
_RELUCTANCE = np.array([1, 3, 1, 3])  # to explain by number of peers what a constant explains as well
_RIDGE = 1e-6  # decides between explanations that fit equally well, and nothing else
_SAME_BYTES = 0.01  # relative; measurements this close are one point of a curve
_AHEAD = 1.5  # a curve is linear from the balanced width to this much of it


@dataclass(frozen=True, order=True)
class Topology:
    """Equal devices on equal hosts.

    Attributes:
        num_devices: `D`.
        devices_per_host: 1 to `D`.
    """

    num_devices: int
    devices_per_host: int

    @classmethod
    def of(cls, num_devices: int, devices_per_host: int | None, host_devices: int | None) -> "Topology":
        """`devices_per_host` of None stands for `host_devices`, the hardware's; if that is None too, one host has all."""
        return cls(num_devices, min(num_devices, devices_per_host or host_devices or num_devices))

    @property
    def peers(self) -> tuple[int, int]:
        """Other devices on a device's host, and devices on other hosts."""
        return self.devices_per_host - 1, self.num_devices - self.devices_per_host


def comm_inputs(dims: Float[Tensor, "*B D"], num_devices: int | None = None) -> Float[Tensor, "*B D 4"]:
    """Inputs of an all-to-all in hundreds of dims: 1, dims that leave a device, the most that leave any, dims that arrive.

    `num_devices` is less than `D` if the last devices do not take part; all inputs of these are 0.
    """
    count = dims.shape[-1] if num_devices is None else num_devices
    share = (count - 1) / count
    largest = dims.max(dim=-1, keepdim=True).values.expand_as(dims)
    received = (dims.sum(dim=-1, keepdim=True) - dims) / count
    inputs = torch.stack([torch.ones_like(dims), dims * share, largest * share, received], dim=-1)
    inputs[..., count:, :] = 0
    return inputs


class ExchangeModel(nn.Module):
    """Milliseconds of all-to-alls; knows nothing until it learns.

    Its buffers have as many rows as there is to know, and loading a state replaces them.

    Attributes:
        points: `[K, 7]` all-to-alls measured by themselves.
        fits: `[G, 12]` weights fitted to placements, one row per topology, the one with the most placements first.
        host_devices: devices on a host of the hardware; 0 if all devices share a host.
        batch_size: of the placements; 0 before there are any.
        shares: `[2, 3]` weights, forward and backward, of what a device sends, the most that any sends, what it receives.
        link_ms: `[2, 2, 4]` weights of `link_inputs`, forward and backward, for the links of a host and the network.
    """

    points: Tensor
    fits: Tensor
    host_devices: Tensor
    batch_size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("points", torch.zeros(0, 7, dtype=torch.float64))
        self.register_buffer("fits", torch.zeros(0, 12, dtype=torch.float64))
        self.register_buffer("host_devices", torch.zeros((), dtype=torch.int64))
        self.register_buffer("batch_size", torch.zeros((), dtype=torch.int64))
        self.register_load_state_dict_pre_hook(take_shapes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(lambda module, _: module._learn())  # type: ignore[no-untyped-call]
        self._learn()

    def topology(self, num_devices: int, devices_per_host: int | None) -> Topology:
        """The topology of a task on this hardware."""
        return Topology.of(num_devices, devices_per_host, int(self.host_devices) or None)

    def knows(self, shape: Topology) -> bool:
        """Whether all-to-alls of exactly this topology were measured."""
        return bool(len(_of(self.points, shape)) or len(_of(self.fits, shape)))

    @property
    def fitted_ms(self) -> Float[Tensor, "2 4"]:
        """The weights fitted to the placements of the topology with the most of them; 0 if there are none."""
        return self.fits[0, _FIT_WEIGHTS].reshape(2, 4).float() if len(self.fits) else torch.zeros(2, 4)

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Replace all that was known of all-to-alls by themselves; samples must be of one hardware."""
        hosts = {sample.host_devices for sample in samples if sample.host_devices is not None}
        self.host_devices = torch.tensor(max(hosts, default=0))
        self.points = torch.cat([self.points[:0], *map(_points_of, samples)])
        self._learn()

    def learn_placements(self, data: CostData, dims: Float[Tensor, "S D"]) -> None:
        """Replace all that was known of all-to-alls as phases of placements; `dims` in hundreds on each device."""
        self.batch_size = torch.tensor(data.batch_size)
        rows: dict[Topology, list[float]] = {}
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            shape, own = self.topology(num_devices, devices_per_host), dims[chosen, :num_devices]
            if num_devices > 1 and shape not in rows:
                weights = _fitted_communication(own, data.phases_ms[chosen, :num_devices])
                widest = own.amax(dim=1).double() * (num_devices - 1) / num_devices * self._unit_bytes
                width = [float(widest.min()), float(widest.max())]
                rows[shape] = [num_devices, shape.devices_per_host, *width, *weights.flatten().tolist()]
        self.fits = torch.tensor(list(rows.values()), dtype=torch.float64).reshape(-1, 12)
        self._learn()

    def placed_ms(self, data: CostData, dims: Float[Tensor, "S D"]) -> Float[Tensor, "S D 2"]:
        """Forward and backward communication of measured placements."""
        found = torch.zeros(*dims.shape, 2)
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            mean_dims = _HUNDRED * float(dims[chosen].sum(dim=1).mean())
            weights = self.weights_ms(self.topology(num_devices, devices_per_host), mean_dims)
            found[chosen] = comm_inputs(dims[chosen], num_devices) @ (self.fitted_ms if weights is None else weights).mT
        return found

    def weights_ms(self, shape: Topology, sum_dims: float) -> Float[Tensor, "2 4"] | None:
        """Weights of `comm_inputs` for placements of tables of `sum_dims` together; None if nothing is known.

        `sum_dims` of another batch than that of the measured placements count in proportion.
        """
        if not len(self.fits) and not (len(self.points) and self.batch_size):
            return None
        if shape.num_devices == 1:
            return torch.zeros(2, 4)
        balanced = sum_dims / _HUNDRED * self._unit_bytes * (shape.num_devices - 1) / shape.num_devices**2
        curves, fits = self._curves(shape), _of(self.fits, shape)
        if not len(fits) and len(self.fits) == 1 and not len(self.points):
            fits = self.fits
        if len(fits) and not (curves and balanced > _REACH * float(fits[0, _FIT_BYTES][1])):
            return fits[0, _FIT_WEIGHTS].reshape(2, 4).float()
        weights = torch.zeros(2, 4, dtype=torch.float64)
        for phase, curve in enumerate(curves or self._law_curves(shape)):
            constant, slope = _tangent(curve, balanced)
            weights[phase, 0] = constant
            weights[phase, 1:] = slope * self._unit_bytes * torch.from_numpy(self.shares[phase])
        return weights.float()

    @property
    def _unit_bytes(self) -> float:
        """Of a unit of `comm_inputs`."""
        return float(_HUNDRED * VECTOR_BYTES * int(self.batch_size))

    def _curves(self, shape: Topology) -> tuple[Time, ...]:
        """Forward and backward through the all-to-alls of exactly this topology; empty if there are none."""
        if shape not in self._known_curves:
            rows = _of(self.points, shape).numpy()
            curves = [through(rows[:, _WIDTHS] @ self.shares[p], rows[:, _TIMES][:, p]) for p in range(2) if len(rows)]
            self._known_curves[shape] = tuple(curves)
        return self._known_curves[shape]

    def _law_curves(self, shape: Topology) -> tuple[Time, ...]:
        """Forward and backward by the law; without a network between hosts if none was measured."""
        known = shape if self.link_ms[:, 1].any() else Topology(shape.num_devices, shape.num_devices)
        return tuple(partial(law_ms, weights, known) for weights in self.link_ms)

    def _learn(self) -> None:
        """Derive shares and law from points and fits."""
        self._known_curves: dict[Topology, tuple[Time, ...]] = {}
        self.shares = np.stack([self._fitted_shares(phase) for phase in range(2)])
        self.link_ms = np.zeros((2, 2, 4))
        for phase in range(2):
            data = self._data_of_law(phase)
            for link in range(
                2
            ):  # the law of placements on one host says nothing of a network, and the other way round
                chosen = [each for each in data if bool(each[0].peers[1]) == bool(link) and each[2] > 0]
                if chosen:
                    shapes, sizes, times = zip(*chosen, strict=True)
                    self.link_ms[phase, link] = fit_link(shapes, link, np.array(sizes), np.array(times))

    def _fitted_shares(self, phase: int) -> Array:
        """From the placements of the first topology, else from unequal all-to-alls, else all of the largest sender."""
        weights = self.fits[:1, _FIT_WEIGHTS].reshape(-1, 2, 4)[:, phase, 1:].sum(dim=0).numpy()  # [3]
        if not weights.any():
            unequal = self.points[self.points[:, 2] != self.points[:, 3]]
            for shape in sorted({_shape_of(row) for row in unequal}):
                rows = _of(self.points, shape).numpy()
                weights = weights + _affine_shares(rows[:, _WIDTHS], rows[:, _TIMES][:, phase])
        return weights / weights.sum() if weights.any() else np.array([0.0, 1.0, 0.0])

    def _data_of_law(self, phase: int) -> list[tuple[Topology, float, float]]:
        """Topology, effective bytes and time of all points, and of a few bytes of each fit."""
        data = [
            (_shape_of(row), float(row[_WIDTHS].numpy() @ self.shares[phase]), float(row[_TIMES][phase]))
            for row in self.points
        ]
        for row in self.fits:
            constant, *slopes = row[_FIT_WEIGHTS].reshape(2, 4)[phase].tolist()
            least, greatest = row[_FIT_BYTES].clamp(min=1).tolist()
            for width in np.geomspace(least, greatest, _PSEUDO_POINTS):
                data.append((_shape_of(row), width, constant + width / self._unit_bytes * sum(slopes)))
        return data


def law_ms(weights: Array, shape: Topology, bytes_out: float) -> float:
    """Milliseconds by the law: links of the host and the network run at once, so the slower of them counts.

    Args:
        weights: `[2, 4]` of `link_inputs`, for the host's links and the network.
        shape: of the devices.
        bytes_out: effective bytes.
    """
    return max(float(link_inputs(shape, link, bytes_out) @ weights[link]) for link in range(2))


def link_inputs(shape: Topology, link: int, bytes_out: float) -> Array:
    """`[4]` terms of the host's links (0) or the network (1); 0 without peers there.

    A constant, the number of peers, their share of the bytes, and the square root of bytes times peers, since small messages
    reach less of the bandwidth.
    """
    peers = shape.peers[link]
    share = bytes_out * peers / sum(shape.peers)
    return np.array([1, peers, share, np.sqrt(share * peers)]) * (peers > 0)


def fit_link(shapes: Sequence[Topology], link: int, bytes_out: Array, measured_ms: Array) -> Array:
    """`[4]` weights of `link_inputs`, not negative, with the least squared relative error over `[N]` measurements."""
    inputs = np.stack([link_inputs(shape, link, size) for shape, size in zip(shapes, bytes_out, strict=True)])
    relative = inputs / measured_ms[:, None]
    size = np.linalg.norm(relative, axis=0)
    size = np.where(size > 0, size, 1.0)
    ridge = np.diag(np.sqrt(_RIDGE) * _RELUCTANCE)
    target = np.concatenate([np.ones(len(measured_ms)), np.zeros(4)])
    weights: Array = scipy.optimize.nnls(np.concatenate([relative / size, ridge]), target)[0] / size
    return weights


def through(sizes: Array, times: Array) -> Time:
    """A time that never falls as bytes grow, through the measurements of one topology; straight lines beyond them."""
    order = np.argsort(sizes, kind="stable")
    sizes, times = sizes[order], times[order]
    point = np.concatenate([[0], np.cumsum(sizes[1:] > (1 + _SAME_BYTES) * sizes[:-1])])
    count = np.bincount(point)
    sizes = np.bincount(point, sizes) / count
    times = scipy.optimize.isotonic_regression(np.bincount(point, times) / count, weights=count).x
    if len(sizes) == 1:
        return lambda size: float(times[0] * max(1.0, size / sizes[0]))
    between = scipy.interpolate.PchipInterpolator(sizes, times)
    first = min(float(between(sizes[0], 1)), times[0] / sizes[0])
    last = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])

    def milliseconds(size: float) -> float:
        beyond = first * min(size - sizes[0], 0) + last * max(size - sizes[-1], 0)
        return float(between(min(max(size, sizes[0]), sizes[-1])) + beyond)

    return milliseconds


def _tangent(time_ms: Time, balanced_bytes: float) -> tuple[float, float]:
    """Constant and milliseconds per byte of a curve around a balanced placement's bytes; neither is negative."""
    here, ahead = time_ms(balanced_bytes), time_ms(_AHEAD * balanced_bytes)
    slope = min((ahead - here) / ((_AHEAD - 1) * balanced_bytes), here / balanced_bytes)
    return here - slope * balanced_bytes, slope


def _fitted_communication(dims: Float[Tensor, "S D"], phases_ms: Float[Tensor, "S D 4"]) -> Float[Tensor, "2 4"]:
    """Weights of `comm_inputs`: non-negative least squares of the error relative to the sample's overall cost.

    Three reweighted passes give outliers less weight (Huber's), since communication on a shared machine is measured with
    long tails.
    """
    inputs = comm_inputs(dims).flatten(0, 1).double().numpy()  # [N, 4]
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


def _affine_shares(widths: Array, times: Array) -> Array:
    """`[3]` shares of the widths in a time that is a constant and a weighted sum of them, with least relative error."""
    relative = np.concatenate([np.ones((len(widths), 1)), widths], axis=1) / times[:, None]
    size = np.linalg.norm(relative, axis=0).clip(min=1e-300)
    weights: Array = (scipy.optimize.nnls(relative / size, np.ones(len(times)))[0] / size)[1:]
    shares: Array = weights / max(weights.sum(), 1e-300)
    return shares


def _points_of(sample: ExchangeSample) -> Float[Tensor, "N 7"]:
    """A sample's mean; if devices send unequally, the largest sender and the mean of the others."""
    count, sent = sample.exchange.num_devices, sample.exchange.sent_bytes.double()
    leaves, arrives = sent * (count - 1) / count, (sent.sum() - sent) / count
    shape = Topology.of(count, sample.exchange.devices_per_host, sample.host_devices)
    topology = [torch.full_like(sent, number) for number in (shape.num_devices, shape.devices_per_host)]
    widths = [leaves, leaves.max().expand(count), arrives]
    rows = torch.stack([*topology, *widths, sample.forward_ms.double(), sample.backward_ms.double()], dim=1)  # [D, 7]
    if bool((sent == sent[0]).all()):
        return rows.mean(dim=0, keepdim=True)
    largest = torch.arange(count) == int(sent.argmax())
    return torch.stack([rows[largest].mean(dim=0), rows[~largest].mean(dim=0)])


def _of(rows: Float[Tensor, "N C"], shape: Topology) -> Float[Tensor, "M C"]:
    return rows[(rows[:, 0] == shape.num_devices) & (rows[:, 1] == shape.devices_per_host)]


def _shape_of(row: Float[Tensor, " C"]) -> Topology:
    return Topology(int(row[0]), int(row[1]))
