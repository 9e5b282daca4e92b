"""All-to-alls: which to measure alone, and what a cost network knows of them.

For a task's topology the network needs the weights of `comm_inputs`. They come from the best that is known: the placements
measured on that topology, unless the task's devices hold far more than theirs; else the all-to-alls measured on it; else a
law of bytes, devices and hosts fitted to all of these. Either is taken as linear around the task's balanced placement.

Bytes are those that leave a device for others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamshard.cost_model.cost_network import CostData
from dreamshard.costs import PHASES, Exchange, ExchangeSample
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.tasks import PlacementTask

Array = NDArray[np.float64]
# Columns of `points` and `fits`: devices, devices per host, then
_BYTES, _TIMES = 2, slice(3, 5)  # of points; milliseconds forward and backward
_WIDEST, _FIT_WEIGHTS = 3, slice(4, 12)  # of fits: least and most bytes of the widest device; weights both ways
_COMM = [PHASES.index("forward_comm"), PHASES.index("backward_comm")]
_OUTLIER = 2.5  # medians of the absolute error, above which a placement counts less
_REACH = 2.0  # how much wider than measured placements a balanced one may be for their fit to hold
_HUNDRED = 100  # dims in a unit of comm_inputs
_RELUCTANCE = np.array([1, 3, 1, 3])  # to explain by number of peers what a constant explains as well
_RIDGE = 1e-6  # decides between explanations that fit equally well, and nothing else
_AHEAD = 1.5  # a curve is linear from the balanced width to this much of it

_LEAST_BYTES, _STEP = 2**14, 3  # of designed exchanges: below, latency alone counts; from one size to the next
_HEADROOM = 2  # of the largest exchange over a balanced placement's


class ExchangeShape(NamedTuple):
    """Equal devices on equal hosts, 1 to all devices per host."""

    num_devices: int
    devices_per_host: int

    @classmethod
    def of(cls, num_devices: int, devices_per_host: int | None, host_devices: int | None) -> "ExchangeShape":
        """`devices_per_host` of None stands for `host_devices`, the hardware's; if that is None too, one host has all."""
        return cls(num_devices, min(num_devices, devices_per_host or host_devices or num_devices))

    @property
    def peers(self) -> tuple[int, int]:
        """Other devices on a device's host, and devices on other hosts."""
        return self.devices_per_host - 1, self.num_devices - self.devices_per_host


def exchanges_for(tasks: Sequence[PlacementTask], batch_size: int, more_devices: Iterable[int] = ()) -> list[Exchange]:
    """Exchanges that describe the links for placements of tasks.

    Of powers of two devices up to the tasks' own, and `more_devices`; up to twice the bytes of balanced placements. Sizes
    and numbers of devices are from fixed grids, so that other trainings ask for mostly the same exchanges.
    """
    designed = []
    for hosts in sorted({task.devices_per_host for task in tasks}, key=lambda hosts: hosts or 0):
        own = [task for task in tasks if task.devices_per_host == hosts]
        most = max(task.num_devices for task in own)
        counts = {*(2**power for power in range(1, most.bit_length())), most, *more_devices} - {1}
        widest = max(int(task.tables.dim.sum()) / task.num_devices for task in own)
        designed += designed_exchanges(counts, hosts, round(_HEADROOM * widest * VECTOR_BYTES * batch_size))
    return designed


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


def comm_inputs(dims: Float[Tensor, "*B D"], num_devices: int | None = None) -> Float[Tensor, "*B D 4"]:
    """Inputs of an all-to-all in hundreds of dims: 1, dims that leave a device, the most that leave any, dims that arrive.

    `num_devices` is less than `D` if the last devices do not take part; all inputs of these are 0.
    """
    count = num_devices or dims.shape[-1]
    share = (count - 1) / count
    largest = dims.max(dim=-1, keepdim=True).values.expand_as(dims)
    received = (dims.sum(dim=-1, keepdim=True) - dims) / count
    inputs = torch.stack([torch.ones_like(dims), dims * share, largest * share, received], dim=-1)
    inputs[..., count:, :] = 0
    return inputs


class ExchangeModel(nn.Module):
    """Milliseconds of all-to-alls; 0 before it learns.

    Its buffers have as many rows as there is to know, and loading a state replaces them.

    Attributes:
        points: `[K, 5]` all-to-alls measured alone.
        fits: `[G, 12]` weights fitted to placements, a row per topology, the one with the most placements first.
        host_devices: devices on a host of the hardware; 0 if all devices share a host.
        batch_size: of the placements; 0 before there are any.
        law: `fit_law` of all points.
        curves: of each topology with points.
        fitted: the row of each topology in `fits`.
    """

    points: Tensor
    fits: Tensor
    host_devices: Tensor
    batch_size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("points", torch.zeros(0, 5, dtype=torch.float64))
        self.register_buffer("fits", torch.zeros(0, 12, dtype=torch.float64))
        self.register_buffer("host_devices", torch.zeros((), dtype=torch.int64))
        self.register_buffer("batch_size", torch.zeros((), dtype=torch.int64))
        self.register_load_state_dict_pre_hook(_take_shapes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(lambda module, _: module._index())  # type: ignore[no-untyped-call]
        self._index()

    def topology(self, num_devices: int, devices_per_host: int | None) -> ExchangeShape:
        """The topology of a task on this hardware."""
        return ExchangeShape.of(num_devices, devices_per_host, int(self.host_devices) or None)

    def knows(self, shape: ExchangeShape) -> bool:
        """Whether all-to-alls of exactly this topology were measured."""
        return shape in self.curves or shape in self.fitted

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Replace all that was known of all-to-alls alone; samples must be of one hardware."""
        hosts = {sample.host_devices for sample in samples if sample.host_devices is not None}
        self.host_devices = torch.tensor(max(hosts, default=0))
        rows = []
        for sample in samples:
            count, times = sample.exchange.num_devices, (sample.forward_ms, sample.backward_ms)
            shape = ExchangeShape.of(count, sample.exchange.devices_per_host, sample.host_devices)
            leaves = int(sample.exchange.sent_bytes.max()) * (count - 1) / count
            rows.append([count, shape.devices_per_host, leaves, *(float(each.mean()) for each in times)])
        self.points = torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)
        self._index()

    def learn_placements(self, data: CostData, dims: Float[Tensor, "S D"]) -> None:
        """Replace all that was known of all-to-alls as phases of placements; `dims` in hundreds on each device."""
        self.batch_size = torch.tensor(data.batch_size)
        rows: dict[ExchangeShape, list[float]] = {}
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            shape, own = self.topology(num_devices, devices_per_host), dims[chosen, :num_devices]
            if num_devices > 1 and shape not in rows:
                weights = _fitted_communication(own, data.phases_ms[chosen, :num_devices])
                widest = own.amax(dim=1).double() * (num_devices - 1) / num_devices * self._unit_bytes
                width = [float(widest.min()), float(widest.max())]
                rows[shape] = [num_devices, shape.devices_per_host, *width, *weights.flatten().tolist()]
        self.fits = torch.tensor(list(rows.values()), dtype=torch.float64).reshape(-1, 12)
        self._index()

    def placed_ms(self, data: CostData, dims: Float[Tensor, "S D"]) -> Float[Tensor, "S D 2"]:
        """Forward and backward communication of measured placements."""
        found = torch.zeros(*dims.shape, 2)
        for (num_devices, devices_per_host), chosen in data.by_layout().items():
            mean_dims = _HUNDRED * float(dims[chosen].sum(dim=1).mean())
            weights = self.weights_ms(self.topology(num_devices, devices_per_host), mean_dims)
            found[chosen] = comm_inputs(dims[chosen], num_devices) @ weights.mT
        return found

    @property
    def fitted_ms(self) -> Float[Tensor, "2 4"]:
        """The weights fitted to the placements of the topology with the most of them; 0 if there are none."""
        return self.fits[0, _FIT_WEIGHTS].reshape(2, 4).float() if len(self.fits) else torch.zeros(2, 4)

    def weights_ms(self, shape: ExchangeShape, sum_dims: float) -> Float[Tensor, "2 4"]:
        """Weights of `comm_inputs` for placements of tables of `sum_dims` together.

        `sum_dims` of another batch than that of the measured placements count in proportion.
        """
        if shape.num_devices == 1 or not self.batch_size:
            return torch.zeros(2, 4)
        fit, curve = self.fitted.get(shape), self.curves.get(shape)
        if fit is None and not self.curves:
            return self.fitted_ms
        balanced = sum_dims / _HUNDRED * self._unit_bytes * (shape.num_devices - 1) / shape.num_devices**2
        if fit is not None and (curve is None or balanced <= _REACH * fit[_WIDEST]):
            return torch.from_numpy(fit[_FIT_WEIGHTS].reshape(2, 4)).float()
        if not self.law[:, 1].any():  # without a network between hosts if none was measured
            shape = ExchangeShape(shape.num_devices, shape.num_devices)
        sizes = np.array([1.0, _AHEAD]) * balanced
        here, ahead = (law_ms(self.law, shape, sizes) if curve is None else curve.ms(shape, sizes)).T
        slope = ((ahead - here) / ((_AHEAD - 1) * balanced)).clip(0, here / balanced)  # [2] per byte
        slopes = self.fitted_ms[:, 1:].double()  # of what a device sends, the most that any sends, what it receives
        shares = torch.where(slopes.sum(dim=1, keepdim=True) > 0, slopes, torch.tensor([0.0, 1.0, 0.0]))
        per_unit = torch.from_numpy(slope * self._unit_bytes)[:, None] * shares / shares.sum(dim=1, keepdim=True)
        return torch.cat([torch.from_numpy(here - slope * balanced)[:, None], per_unit], dim=1).float()

    @property
    def _unit_bytes(self) -> float:
        """Of a unit of `comm_inputs`."""
        return float(_HUNDRED * VECTOR_BYTES * int(self.batch_size))

    def _index(self) -> None:
        points, fits = self.points.numpy(), self.fits.numpy()
        rows = {shape: points[(points[:, :2] == shape).all(axis=1)] for shape in _shapes(points)}
        self.law = fit_law(rows)
        self.curves = {shape: _Curve.through(shape, own) for shape, own in rows.items()}
        self.fitted = dict(zip(_shapes(fits), fits, strict=True))


def _shapes(rows: Array) -> list[ExchangeShape]:
    return [ExchangeShape(*row) for row in rows[:, :2].astype(int).tolist()]


def fit_law(points: Mapping[ExchangeShape, Array]) -> Array:
    """`[2, 2, 4]` weights of `link_inputs`, forward and backward, for the links of a host and the network.

    They are not negative, and have the least squared relative error over the rows of `ExchangeModel.points` of each topology.
    One host says nothing of a network, and many hosts hardly anything of the links of one.
    """
    law = np.zeros((2, 2, 4))
    for link in range(2):
        chosen = [(shape, rows) for shape, rows in points.items() if bool(shape.peers[1]) == bool(link)]
        for phase in range(2) if chosen else ():
            inputs = np.concatenate([link_inputs(shape, link, rows[:, _BYTES]) for shape, rows in chosen])
            measured_ms = np.concatenate([rows[:, _TIMES][:, phase] for _, rows in chosen])
            relative = inputs[measured_ms > 0] / measured_ms[measured_ms > 0, None]
            size = np.linalg.norm(relative, axis=0).clip(min=1e-300)
            ridge = np.diag(np.sqrt(_RIDGE) * _RELUCTANCE)
            target = np.concatenate([np.ones(len(relative)), np.zeros(4)])
            law[phase, link] = scipy.optimize.nnls(np.concatenate([relative / size, ridge]), target)[0] / size
    return law


class _Curve(NamedTuple):
    """The all-to-alls of one topology: a law of their own, and what was measured relative to it at `[N]` sizes.

    The law bridges sizes; what was measured tells where a library changes its protocol.
    """

    law: Array
    log_bytes: Array
    ratio: Array

    @classmethod
    def through(cls, shape: ExchangeShape, points: Array) -> "_Curve":
        """Through the rows of `ExchangeModel.points` of one topology."""
        points = points[points[:, _BYTES].argsort()]
        law, sizes = fit_law({shape: points}), points[:, _BYTES]
        return cls(law, np.log(sizes), points[:, _TIMES].T / law_ms(law, shape, sizes).clip(min=1e-12))

    def ms(self, shape: ExchangeShape, bytes_out: Array) -> Array:
        """As `law_ms`."""
        ratio = np.stack([np.interp(np.log(bytes_out), self.log_bytes, each) for each in self.ratio])
        found: Array = law_ms(self.law, shape, bytes_out) * ratio
        return found


def law_ms(law: Array, shape: ExchangeShape, bytes_out: Array) -> Array:
    """`[2, N]` milliseconds, forward and backward, of `[N]` bytes that leave a device.

    Links of the host and the network run at once, so the slower of them counts.
    """
    inputs = np.stack([link_inputs(shape, link, bytes_out) for link in range(2)])  # [2, N, 4]
    slowest: Array = np.einsum("plx,lnx->pln", law, inputs).max(axis=1)
    return slowest


def link_inputs(shape: ExchangeShape, link: int, bytes_out: Array) -> Array:
    """`[N, 4]` terms of the host's links (0) or the network (1); 0 without peers there.

    A constant, the number of peers, their share of the bytes, and the square root of bytes times peers, since small messages
    reach less of the bandwidth.
    """
    peers = shape.peers[link]
    share = bytes_out * peers / sum(shape.peers)
    ones = np.full_like(share, peers > 0)
    return np.stack([ones, ones * peers, share, np.sqrt(share * peers)], axis=1)


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


def _take_shapes(module: nn.Module, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Give buffers the shapes of the state that is about to be loaded, whose sizes are what was learned."""
    for name, own in module.named_buffers():
        own.data = torch.empty_like(state.get(prefix + name, own))
