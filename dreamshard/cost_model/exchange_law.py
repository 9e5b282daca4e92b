"""How long an all-to-all takes, by bytes and topology: a law for any topology, and a curve for one that was measured.

Bytes are those that leave a device for others; an *effective* number of bytes weighs what a device itself sends, the most
that any device sends, and what it receives. All arrays are NumPy in float64, times in milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAW_INPUTS = 4
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
        """`devices_per_host` of None stands for `host_devices`, the hardware's; where that is None, one host has all."""
        return cls(num_devices, min(num_devices, devices_per_host or host_devices or num_devices))

    @property
    def near(self) -> int:
        """Other devices on a device's host."""
        return self.devices_per_host - 1

    @property
    def far(self) -> int:
        """Devices on other hosts."""
        return self.num_devices - self.devices_per_host

    def on_one_host(self) -> "Topology":
        """The same devices without a network between them."""
        return Topology(self.num_devices, self.num_devices)


def law_ms(weights: Array, shape: Topology, bytes_out: float) -> float:
    """Milliseconds by the law: links of the host and the network run at once, so the slower of them counts.

    Args:
        weights: `[2, 4]` of `link_inputs`, for the host's links and the network.
        shape: of the devices.
        bytes_out: effective bytes.
    """
    loads = zip(weights, (shape.near, shape.far), strict=True)
    return max(
        float(link_inputs(peers, shape.near + shape.far, np.array([bytes_out]))[0] @ own) for own, peers in loads
    )


def link_inputs(peers: int, all_peers: int, bytes_out: Array) -> Array:
    """`[N, 4]` terms of one kind of link for `[N]` effective bytes, of which its peers get their share; 0 without peers.

    A constant, the number of peers, the bytes, and the square root of bytes times peers, since small messages reach less of
    the bandwidth.
    """
    share = bytes_out * peers / all_peers
    terms = [1, peers, share, np.sqrt(share * peers)] if peers else [0] * LAW_INPUTS
    return np.stack([np.broadcast_to(np.asarray(term, np.float64), bytes_out.shape) for term in terms], axis=1)


def fit_link(inputs: Array, measured_ms: Array) -> Array:
    """`[4]` weights, not negative, with the least squared relative error over `[N]` measurements; 0 without any."""
    relative = inputs / measured_ms[:, None]
    size = np.linalg.norm(relative, axis=0)
    size = np.where(size > 0, size, 1.0)
    ridge = np.diag(np.sqrt(_RIDGE) * _RELUCTANCE)
    target = np.concatenate([np.ones(len(measured_ms)), np.zeros(LAW_INPUTS)])
    weights: Array = scipy.optimize.nnls(np.concatenate([relative / size, ridge]), target)[0] / size
    return weights


class Curve:
    """A time that never falls as bytes grow, through the measurements of one topology."""

    def __init__(self, effective_bytes: Array, measured_ms: Array) -> None:
        order = np.argsort(effective_bytes, kind="stable")
        sizes, times = effective_bytes[order], measured_ms[order]
        new = np.concatenate([[True], sizes[1:] > (1 + _SAME_BYTES) * sizes[:-1]])
        point = np.cumsum(new) - 1
        count = np.bincount(point)
        self.sizes = np.bincount(point, sizes) / count
        self.times = scipy.optimize.isotonic_regression(np.bincount(point, times) / count, weights=count).x
        self._between = scipy.interpolate.PchipInterpolator(self.sizes, self.times) if len(self.sizes) > 1 else None

    def __call__(self, effective_bytes: float) -> float:
        """Milliseconds; outside of the measured sizes the curve continues in a straight line, never below zero."""
        first, last = self.sizes[0], self.sizes[-1]
        if self._between is None:
            return float(self.times[0] * max(1.0, effective_bytes / last))
        if effective_bytes < first:
            slope = min(float(self._between(first, 1)), self.times[0] / first)
            return float(self.times[0] - slope * (first - effective_bytes))
        if effective_bytes > last:
            slope = (self.times[-1] - self.times[-2]) / (last - self.sizes[-2])
            return float(self.times[-1] + slope * (effective_bytes - last))
        return float(self._between(effective_bytes))


def tangent(time_ms: Callable[[float], float], balanced_bytes: float) -> tuple[float, float]:
    """Constant and milliseconds per byte of a curve around a balanced placement's bytes; neither is negative."""
    here, ahead = time_ms(balanced_bytes), time_ms(_AHEAD * balanced_bytes)
    slope = min((ahead - here) / ((_AHEAD - 1) * balanced_bytes), here / balanced_bytes)
    return here - slope * balanced_bytes, slope
