"""How long collectives take over the links of an accelerator's node and the network between nodes.

Within a node NCCL's collectives follow monotone curves through public measurements, in logarithms. Devices without access to
each other's memory pass all bytes through the host's: an all-to-all takes the link of its largest sender and that path for
the bytes of all, which explains NeuroShard's networks of four GPUs to 4 %. What leaves the node shares its adapters evenly;
only public times at `PEER_S` check this.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.hardware.accelerator import MEASURED_LINKS, PRESETS, AcceleratorSpec

Operation = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce"]
"""NCCL's collectives that training with sharded tables needs."""
MEASUREMENTS = Path(__file__).parent / "measurements" / "collectives.csv"
VECTOR_BYTES = 4  # per element of pooled vectors and gradients
NETWORK_SHARE = 0.9  # of the adapters' bandwidth that an all-to-all reaches; an assumption, for headers and uneven use
PEER_S = 2e-6  # per device of another node; from 64 H800 on 8 nodes, 296-338 us for 8 MiB each (nccl issue 1531)
_BOTH_WAYS: tuple[Operation, ...] = ("reduce_scatter", "all_gather")
LARGE_BYTES = 2**29  # at which links reach their full bandwidth: the largest size that was measured


def collectives_s(
    most: Float[Tensor, "*B 4"],
    batch_size: int,
    num_devices: int,
    spec: AcceleratorSpec,
    devices_per_host: int,
    group: int,
    mean_dims: Float[Tensor, "*B"],
) -> Float[Tensor, "*B 2"]:
    """Seconds of all collectives of a step, forward and backward, one after another; every device waits for them.

    Table- and column-wise shards need an all-to-all each way; row-wise tables a reduce-scatter of partial sums over all
    devices, and an all-gather of gradients back; tables on one host a reduce-scatter within it, then an all-to-all between
    devices of equal number on all hosts, and the reverse; data-parallel tables an all-reduce of gradients.

    Args:
        most: `Shards.traffic` of the device that carries most of each kind.
        devices_per_host: devices that reach each other by the node's own link.
        group: devices that share the rows of a table on one host.
        mean_dims: mean over devices of the first kind of `most`.
    """
    dim_bytes, hosts, near = VECTOR_BYTES * batch_size, -(-num_devices // group), max(1, devices_per_host // group)
    sent = most * dim_bytes
    each_way_s = collective_s(sent[..., 0], num_devices, spec, devices_per_host, mean_bytes=mean_dims * dim_bytes)
    each_way_s = each_way_s + collective_s(sent[..., 3] / group, hosts, spec, near)
    there_s, back_s = (
        each_way_s
        + collective_s(sent[..., 1], num_devices, spec, devices_per_host, operation)
        + collective_s(sent[..., 3], group, spec, group, operation)
        for operation in _BOTH_WAYS
    )
    reduced_s = collective_s(most[..., 2], num_devices, spec, devices_per_host, "all_reduce")
    return torch.stack([there_s, back_s + reduced_s], dim=-1)


def collective_s(
    num_bytes: Float[Tensor, "*B"],
    num_devices: int,
    spec: AcceleratorSpec,
    devices_per_host: int,
    operation: Operation = "all_to_all",
    mean_bytes: Float[Tensor, "*B"] | None = None,
) -> Float[Tensor, "*B"]:
    """Seconds of one collective, for which all devices wait; 0 for no bytes.

    Within a node the spec's curve holds. What leaves the node shares its adapters evenly, at `NETWORK_SHARE` of their
    bandwidth; all hosts are full and reach each other at full speed. Both happen at once, so the slower one counts. In an
    all-to-all each device of another node costs `PEER_S`. In the other collectives each ring of NCCL enters and leaves a host
    once, so that the adapters of a host share what one device sends, and each host more costs `PEER_S`.

    Args:
        num_bytes: as `CollectiveTimes` counts them; in an all-to-all, of the largest sender, a `D`-th to each device.
        devices_per_host: devices that reach each other by the node's own link.
        mean_bytes: of an all-to-all, mean over the senders; as many as `num_bytes` if left out.
    """
    near = min(num_devices, devices_per_host)
    if operation == "all_to_all":
        within, leaving, peers = near / num_devices, (num_devices - near) / num_devices, num_devices - near
    else:
        within, leaving, peers = 1.0, sent_share(num_devices, operation) / near, -(-num_devices // near) - 1
    seconds = within_node_s(num_bytes * within, spec, near, operation)
    if num_devices > near:
        network_s = num_bytes * leaving / (NETWORK_SHARE * spec.network_bytes_per_s) + spec.network_latency_s
        seconds = torch.maximum(seconds, network_s + peers * PEER_S)
    if spec.shared_bytes_per_s and spec.link not in PRESETS:
        shared_bytes = (num_bytes if mean_bytes is None else mean_bytes) * within * sent_share(near, operation)
        seconds = seconds + near * shared_bytes / spec.shared_bytes_per_s
    return seconds * (num_bytes > 0)


def within_node_s(
    num_bytes: Float[Tensor, "*B"], spec: AcceleratorSpec, near: int, operation: Operation
) -> Float[Tensor, "*B"]:
    """Seconds of one collective among `near` devices of a node; bytes as `CollectiveTimes` counts them."""
    if near == 1:
        return torch.zeros_like(num_bytes)
    if spec.link in PRESETS:
        faster = spec.link_bytes_per_s / PRESETS[spec.link].link_bytes_per_s
        return curve_s(link_curve(spec.link, near, operation), num_bytes / faster)
    by_itself = not spec.link or spec.shared_bytes_per_s  # measured shares include what devices share
    share = 1.0 if by_itself else _datasheet_share(str(spec.link), near, operation)
    return num_bytes * sent_share(near, operation) / (share * spec.link_bytes_per_s) + spec.link_latency_s


def sent_share(num_devices: int, operation: Operation) -> float:
    """Of the bytes of a collective, what NCCL moves out of each device; twice in an all-reduce, of sums and of results."""
    return (2 if operation == "all_reduce" else 1) * (num_devices - 1) / num_devices


@cache
def _datasheet_share(kind: str, num_gpus: int, operation: Operation) -> float:
    """Share of its datasheet's bandwidth that a link of this kind reaches: the geometric mean of the GPUs measured."""
    shares = []
    for gpu in MEASURED_LINKS[kind]:
        seconds = float(curve_s(link_curve(gpu, num_gpus, operation), torch.tensor(float(LARGE_BYTES))))
        shares.append(LARGE_BYTES * sent_share(num_gpus, operation) / seconds / PRESETS[gpu].link_bytes_per_s)
    return math.prod(shares) ** (1 / len(shares))


@cache
def link_curve(gpu: str, num_gpus: int, operation: Operation) -> "scipy.interpolate.PchipInterpolator":
    """The curve of `num_gpus` of this kind, at least 2: logarithms of seconds over those of bytes, never falling."""
    return fit_link_curve(*collective_times(gpu, operation), num_gpus)


def fit_link_curve(
    counts: Int[np.ndarray, " C"], sizes: Int[np.ndarray, " K"], times_us: Float[np.ndarray, "C K"], num_gpus: int
) -> "scipy.interpolate.PchipInterpolator":
    """The curve through times by number of GPUs and bytes, after the least change that makes them rise.

    Between numbers it is interpolated in their logarithm. Beyond the largest measured number `m`, each doubling adds as much
    latency as the last one, and the rest grows with the share of the bytes that leaves a GPU, from `(m-1)/m` to `(n-1)/n`.
    """
    rising = [scipy.optimize.isotonic_regression(np.log(1e-6 * row)).x for row in times_us]  # [C, K]
    curve = np.array([np.interp(np.log(num_gpus), np.log(counts), column) for column in np.transpose(rising)])
    if num_gpus > counts[-1] and len(counts) > 1:
        (fewer, most), (before, last) = counts[-2:], np.exp(rising[-2:])
        latency_s = max(last[0] - before[0], 0) * math.log(num_gpus / most, most / fewer)
        curve = np.log(last * ((num_gpus - 1) / num_gpus) / ((most - 1) / most) + latency_s)
    return scipy.interpolate.PchipInterpolator(np.log(sizes), curve)


def curve_s(curve: "scipy.interpolate.PchipInterpolator", num_bytes: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Seconds for these bytes: below the smallest measured size as long as for that; above the largest in proportion."""
    wanted = num_bytes.double().clamp(min=1).log()
    within = wanted.clamp(float(curve.x[0]), float(curve.x[-1]))
    measured = torch.from_numpy(np.asarray(curve(within.numpy())))
    return (measured + (wanted - within).clamp(min=0)).exp().to(num_bytes.dtype)


class CollectiveTimes(NamedTuple):
    """Microseconds of one collective by number of GPUs and bytes, counted as by nccl-tests.

    That is all that each sends in an all-to-all, the input of each in reductions, and the output of each in an all-gather.
    """

    counts: Int[np.ndarray, " C"]
    sizes: Int[np.ndarray, " K"]
    times_us: Float[np.ndarray, "C K"]


def collective_times(gpu: str, operation: Operation = "all_to_all") -> CollectiveTimes:
    """Public measurements of GPUs of this kind."""
    measured = _measured()
    rows = measured[(measured["gpu"] == gpu) & (measured["operation"] == operation)]  # by GPUs, then by bytes
    counts, sizes = np.unique(rows["num_gpus"]), np.unique(rows["bytes_per_gpu"])
    return CollectiveTimes(counts, sizes, rows["time_us"].reshape(len(counts), len(sizes)))


@cache
def _measured() -> NDArray[Any]:
    return np.genfromtxt(MEASUREMENTS, delimiter=",", names=True, dtype=None, encoding="utf-8")
