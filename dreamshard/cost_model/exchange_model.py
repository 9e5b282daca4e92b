"""What a cost network knows of all-to-alls, measured by themselves and as phases of placements.

For a task's topology it yields the weights of `structured_formula.comm_inputs`, from the best that is known of it: the
placements measured on that topology, unless the task's devices hold far more than theirs; else a monotone curve through
the all-to-alls measured on it; else a law of bytes, devices and hosts fitted to everything measured. The latter two are
linear around the task's balanced placement.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamshard.cost_model.exchange_law import (
    LAW_INPUTS,
    Array,
    Curve,
    Topology,
    fit_link,
    law_ms,
    link_inputs,
    tangent,
)
from dreamshard.costs import ExchangeSample
from dreamshard.hardware.links import VECTOR_BYTES

# Columns of `points`: topology, bytes, milliseconds
_TOPOLOGY = slice(0, 2)  # devices, devices per host
_WIDTHS = slice(2, 5)  # bytes that leave the device, the most that leave any, bytes that arrive
_TIMES = slice(5, 7)  # forward, backward
_FIT_BYTES = slice(2, 4)  # columns of `fits`: least and greatest bytes that left a placement's widest device
_FIT_WEIGHTS = slice(4, 12)  # of comm_inputs, forward and backward
_REACH = 2.0  # how much wider than measured placements a balanced one may be for their fit to hold
_PSEUDO_POINTS = 3  # of a fit, in the data of the law
_HOST, _NETWORK = 0, 1  # kinds of links
_HUNDRED = 100  # dims in a unit of comm_inputs
_LEAST_BYTES = 1.0

Time = Callable[[float], float]
"""Milliseconds of an all-to-all by its effective bytes."""


class ExchangeModel(nn.Module):
    """Milliseconds of all-to-alls; knows nothing until `learn_exchanges` or `learn_placements` is called.

    Its buffers have as many rows as there is to know, and loading a state replaces them.

    Attributes:
        points: `[K, 7]` all-to-alls measured by themselves.
        fits: `[G, 12]` weights fitted to placements, one row per topology.
        law_ms: `[2, 2, 4]` weights of `link_inputs`, forward and backward, for the links of a host and the network.
        shares: `[2, 3]` weights of what a device sends, the most that any sends, and what it receives.
        host_devices: devices on a host of the hardware; 0 if all devices share a host.
        batch_size: of the placements; 0 before there are any.
    """

    points: Tensor
    fits: Tensor
    law_ms: Tensor
    shares: Tensor
    host_devices: Tensor
    batch_size: Tensor

    def __init__(self) -> None:
        super().__init__()
        double = torch.float64
        self.register_buffer("points", torch.zeros(0, 7, dtype=double))
        self.register_buffer("fits", torch.zeros(0, 12, dtype=double))
        self.register_buffer("law_ms", torch.zeros(2, 2, LAW_INPUTS, dtype=double))
        self.register_buffer("shares", torch.tensor([[0.0, 1.0, 0.0]] * 2, dtype=double))
        self.register_buffer("host_devices", torch.zeros((), dtype=torch.int64))
        self.register_buffer("batch_size", torch.zeros((), dtype=torch.int64))
        self._known_curves: dict[Topology, tuple[Time, ...]] = {}
        self.register_load_state_dict_pre_hook(_take_rows)  # type: ignore[no-untyped-call]

    def topology(self, num_devices: int, devices_per_host: int | None) -> Topology:
        """The topology of a task on this hardware."""
        return Topology.of(num_devices, devices_per_host, int(self.host_devices) or None)

    def knows(self, shape: Topology) -> bool:
        """Whether all-to-alls of exactly this topology were measured."""
        return bool(_is_of(self.points, shape).any() or _is_of(self.fits, shape).any())

    def learn_exchanges(self, samples: Sequence[ExchangeSample]) -> None:
        """Replace all that was known of all-to-alls by themselves; samples must be of one hardware."""
        hosts = {sample.host_devices for sample in samples if sample.host_devices is not None}
        self.host_devices = torch.tensor(max(hosts, default=0))
        self.points = torch.cat([self.points[:0], *(self._points_of(sample) for sample in samples)])
        self._learn()

    def learn_placements(
        self,
        fits: Mapping[Topology, Float[Tensor, "2 4"]],
        widths: Mapping[Topology, tuple[float, float]],
        batch_size: int,
    ) -> None:
        """Replace all that was known of all-to-alls as phases of placements.

        Args:
            fits: weights of `comm_inputs`, the topology with the most placements first.
            widths: least and greatest of the largest width of a placement, in units of `comm_inputs`.
        """
        self.batch_size = torch.tensor(batch_size)
        unit = self._unit_bytes(batch_size)
        rows = [
            [
                shape.num_devices,
                shape.devices_per_host,
                *(unit * width for width in widths[shape]),
                *weights.flatten().tolist(),
            ]
            for shape, weights in fits.items()
        ]
        self.fits = torch.tensor(rows, dtype=torch.float64).reshape(-1, 12)
        self._learn()

    def weights_ms(self, shape: Topology, sum_dims: float) -> Float[Tensor, "2 4"] | None:
        """Weights of `comm_inputs` for placements of tables of `sum_dims` together; None if nothing is known.

        `sum_dims` of another batch than that of the measured placements count in proportion.
        """
        if not len(self.fits) and not (len(self.points) and self.batch_size):
            return None
        if shape.num_devices == 1:
            return torch.zeros(2, 4)
        fit = self.fit_ms(shape, sum_dims)
        if fit is not None:
            return fit
        balanced_bytes = self._balanced_bytes(shape, sum_dims)
        weights = torch.zeros(2, 4, dtype=torch.float64)
        for phase, curve in enumerate(self._curves(shape) or self._law_curves(shape)):
            constant, slope = tangent(curve, balanced_bytes)
            weights[phase, 0] = constant
            weights[phase, 1:] = slope * self._unit_bytes(int(self.batch_size)) * self.shares[phase]
        return weights.float()

    def fit_ms(self, shape: Topology, sum_dims: float) -> Float[Tensor, "2 4"] | None:
        """The weights fitted to placements on this topology, where they hold for tables of `sum_dims` or less."""
        fit = self._fit_of(shape)
        if fit is None:
            return None
        reach = _REACH * float(fit[_FIT_BYTES][1])
        if self._curves(shape) and self._balanced_bytes(shape, sum_dims) > reach:
            return None
        return fit[_FIT_WEIGHTS].reshape(2, 4).float()

    def _balanced_bytes(self, shape: Topology, sum_dims: float) -> float:
        """Bytes that leave each device of a balanced placement."""
        unit = self._unit_bytes(int(self.batch_size))
        return sum_dims / _HUNDRED * unit * (shape.num_devices - 1) / shape.num_devices**2

    def _fit_of(self, shape: Topology) -> Float[Tensor, " 12"] | None:
        """The fit to placements on this topology; the only one for any, if nothing else was measured."""
        rows = self.fits[_is_of(self.fits, shape)]
        if len(rows):
            return rows[0]
        return self.fits[0] if len(self.fits) == 1 and not len(self.points) else None

    def _curves(self, shape: Topology) -> tuple[Time, ...]:
        """Forward and backward through the all-to-alls of exactly this topology; empty if there are none."""
        if shape not in self._known_curves:
            rows = self.points[_is_of(self.points, shape)]
            curves = (Curve(*self._sizes_and_times(rows, phase)) for phase in range(2)) if len(rows) else ()
            self._known_curves[shape] = tuple(curves)
        return self._known_curves[shape]

    def _law_curves(self, shape: Topology) -> tuple[Time, ...]:
        """Forward and backward by the law; without a network between hosts if none was measured."""
        known = shape if self.law_ms[:, _NETWORK].any() else shape.on_one_host()
        return tuple(partial(law_ms, weights, known) for weights in self.law_ms.numpy())

    def _learn(self) -> None:
        """Derive shares and law from points and fits."""
        self._known_curves = {}
        for phase in range(2):
            self.shares[phase] = self._fitted_shares(phase)
            shapes, sizes, times = self._data_of_law(phase)
            for link in (_HOST, _NETWORK):
                chosen = [i for i, shape in enumerate(shapes) if bool(shape.far) == (link == _NETWORK) and times[i] > 0]
                inputs = [
                    link_inputs(shapes[i].far if link else shapes[i].near, shapes[i].num_devices - 1, sizes[i : i + 1])
                    for i in chosen
                ]
                if inputs:
                    self.law_ms[phase, link] = torch.from_numpy(fit_link(np.concatenate(inputs), times[chosen]))
                else:
                    self.law_ms[phase, link] = 0

    def _fitted_shares(self, phase: int) -> Float[Tensor, " 3"]:
        """From the placements of the first topology, else from unequal all-to-alls, else all of the largest sender."""
        weights = self.fits[:1, _FIT_WEIGHTS].reshape(-1, 2, 4)[:, phase, 1:].sum(dim=0)  # [3]
        if not weights.any():
            unequal = self.points[self.points[:, _WIDTHS][:, 0] != self.points[:, _WIDTHS][:, 1]]
            for shape in sorted({_shape_of(row) for row in unequal}):
                rows = self.points[_is_of(self.points, shape)]
                weights = weights + _normalised(_affine(rows[:, _WIDTHS], rows[:, _TIMES][:, phase])[1:])
        return _normalised(weights) if weights.any() else torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)

    def _data_of_law(self, phase: int) -> tuple[list[Topology], Array, Array]:
        """Topologies, effective bytes and times: all points, and a few bytes of each fit."""
        shapes = [_shape_of(row) for row in self.points]
        sizes, times = self._sizes_and_times(self.points, phase)
        unit = self._unit_bytes(int(self.batch_size))
        for row in self.fits:
            least, greatest = row[_FIT_BYTES].clamp(min=_LEAST_BYTES).tolist()
            widths = np.geomspace(least, greatest, _PSEUDO_POINTS)
            constant, *slopes = row[_FIT_WEIGHTS].reshape(2, 4)[phase].tolist()
            shapes += [_shape_of(row)] * _PSEUDO_POINTS
            sizes, times = np.append(sizes, widths), np.append(times, constant + widths / unit * sum(slopes))
        return shapes, sizes, times

    def _sizes_and_times(self, rows: Float[Tensor, "N 7"], phase: int) -> tuple[Array, Array]:
        return (rows[:, _WIDTHS] @ self.shares[phase]).numpy(), rows[:, _TIMES][:, phase].numpy()

    @staticmethod
    def _unit_bytes(batch_size: int) -> float:
        return float(_HUNDRED * VECTOR_BYTES * batch_size)

    @staticmethod
    def _points_of(sample: ExchangeSample) -> Float[Tensor, "N 7"]:
        """A sample's mean; where devices send unequally, the largest sender and the mean of the others."""
        count = sample.exchange.num_devices
        sent = sample.exchange.sent_bytes.double()
        leaves, arrives = sent * (count - 1) / count, (sent.sum() - sent) / count
        shape = Topology.of(count, sample.exchange.devices_per_host, sample.host_devices)
        columns = [leaves, leaves.max().expand(count), arrives, sample.forward_ms.double(), sample.backward_ms.double()]
        measured = torch.stack(columns, dim=1)  # [D, 5]
        if bool((sent == sent[0]).all()):
            means = measured.mean(dim=0, keepdim=True)
        else:
            largest = torch.arange(count) == int(sent.argmax())
            means = torch.stack([measured[largest].mean(dim=0), measured[~largest].mean(dim=0)])
        topology = torch.tensor([[shape.num_devices, shape.devices_per_host]], dtype=torch.float64)
        return torch.cat([topology.expand(len(means), -1), means], dim=1)


def _take_rows(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Give buffers as many rows as the state has that is about to be loaded."""
    assert isinstance(module, ExchangeModel)
    for name, buffer in module.named_buffers():
        setattr(module, name, torch.empty_like(state_dict.get(prefix + name, buffer)))
    module._known_curves = {}


def _is_of(rows: Float[Tensor, "N C"], shape: Topology) -> Bool[Tensor, " N"]:
    return (rows[:, 0] == shape.num_devices) & (rows[:, 1] == shape.devices_per_host)


def _shape_of(row: Float[Tensor, " C"]) -> Topology:
    return Topology(*(int(value) for value in row[_TOPOLOGY]))


def _affine(widths: Float[Tensor, "N 3"], times: Float[Tensor, " N"]) -> Float[Tensor, " 4"]:
    """A constant and weights of the widths, not negative, with the least squared relative error."""
    relative = torch.cat([torch.ones(len(widths), 1, dtype=torch.float64), widths], dim=1) / times[:, None]
    size = relative.norm(dim=0).clamp(min=1e-300)
    solution = scipy.optimize.nnls((relative / size).numpy(), np.ones(len(times)))[0]
    weights: Tensor = torch.from_numpy(solution) / size
    return weights


def _normalised(weights: Float[Tensor, " 3"]) -> Float[Tensor, " 3"]:
    return weights / weights.sum().clamp(min=1e-300)
