"""How long collectives take over the links of an accelerator's node and the network between nodes.

Within a node NCCL's collectives follow monotone curves through public measurements, in logarithms. What leaves the node
shares its adapters evenly; no public time between hosts checks this, except those named beside `PEER_S`.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import scipy
import torch
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from dreamshard.hardware.accelerator import MEASURED_LINKS, PRESETS, AcceleratorSpec
from dreamshard.shards import Collectives, Shards

Operation = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce"]
"""NCCL's collectives that training with sharded tables needs."""
THERE_AND_BACK: tuple[Operation, ...] = ("reduce_scatter", "all_gather")
"""Of partial sums, forward and backward."""
MEASUREMENTS = Path(__file__).parent / "measurements"
VECTOR_BYTES = 4  # per element of pooled vectors and gradients
LOOKUP_BYTES = 8  # per index and per length: int64
NETWORK_SHARE = 0.9  # of the adapters' bandwidth that an all-to-all reaches; an assumption, for headers and uneven use
PEER_S = 2e-6  # per device of another node; from 64 H800 on 8 nodes, 296-338 us for 8 MiB each (nccl issue 1531)
LARGE_BYTES = 2**29  # at which links reach their full bandwidth: the largest size that was measured


def collectives_s(
    collectives: Collectives, batch_size: int, spec: AcceleratorSpec, devices_per_host: int
) -> Float[Tensor, "D 2"]:
    """Seconds of all collectives of a step on each device, forward and backward, one after another.

    Table- and column-wise shards need an all-to-all each way. Row-wise tables need a reduce-scatter of partial sums over all
    devices, and an all-gather of gradients on the way back. Tables on one host need a reduce-scatter within it, and an
    all-to-all between devices of equal number on all hosts; on the way back the same in reverse. Data-parallel tables need an
    all-reduce of their gradients in the backward pass. `devices_per_host` reach each other by the node's own link.
    """
    dims, rows = collectives.all_to_all_dims.double(), collectives.row_wise_dims
    num_devices, group = len(dims), collectives.devices_per_host
    seconds = torch.zeros(num_devices, 2, dtype=torch.float64)
    if bool((dims > 0).any()):
        seconds += all_to_all_s(vector_bytes(dims, batch_size), spec, devices_per_host)[:, None]
    for way, operation in enumerate(THERE_AND_BACK):
        if rows:
            rows_bytes = vector_bytes(torch.tensor(float(rows), dtype=torch.float64), batch_size)
            seconds[:, way] += ring_s(rows_bytes, num_devices, spec, devices_per_host, operation)
        if bool((collectives.host_dims > 0).any()):
            host_dims = collectives.host_dims.double()
            hosts_s = host_exchange_s(host_dims, batch_size, group, spec, devices_per_host, operation)
            seconds[:, way] += hosts_s.repeat_interleave(group)[:num_devices]
    if collectives.all_reduce_bytes:
        gradient_bytes = torch.tensor(float(collectives.all_reduce_bytes), dtype=torch.float64)
        seconds[:, 1] += ring_s(gradient_bytes, num_devices, spec, devices_per_host, "all_reduce")
    return seconds


def index_exchange_s(
    shards: Shards, batch_size: int, spec: AcceleratorSpec, devices_per_host: int | None = None
) -> Float[Tensor, " D"]:
    """Seconds of the exchange of indices, with which every shard but data-parallel copies gets the lookups of its rows.

    It is none of the paper's four phases: TorchRec's pipeline hides it behind the computation of the batch before. Each
    device receives one int64 per lookup of its tables and one per sample and table (the lengths).
    """
    received = ~shards.is_any("data_parallel") * batch_size * (shards.tables.pooling_factor.double() + 1)
    received_bytes = LOOKUP_BYTES * received.new_zeros(shards.num_devices).index_add_(0, shards.device, received)
    return all_to_all_s(received_bytes, spec, devices_per_host) * bool(received.any())


def vector_bytes(sum_dims: Float[Tensor, "*B"], batch_size: int) -> Float[Tensor, "*B"]:
    """Bytes of the pooled vectors of the whole batch on each device: what it sends in all, its own share included."""
    return sum_dims * (VECTOR_BYTES * batch_size)


def all_to_all_s(
    sent_bytes: Float[Tensor, "*B D"], spec: AcceleratorSpec, devices_per_host: int | None = None
) -> Float[Tensor, "*B D"]:
    """Seconds of one all-to-all: every device waits for the largest sender.

    A device never receives more than the largest sender sends, so only sending counts. Within a node the spec's curve
    holds. What leaves the node shares its adapters evenly (one or more for each device, or one for several), at
    `NETWORK_SHARE` of their bandwidth, and each device of another node costs `PEER_S`; all hosts are full and reach each
    other at full speed. Both happen at once, so the slower one counts.

    Args:
        sent_bytes: what each device sends in all; each device, itself too, gets a `D`-th of it.
        devices_per_host: devices that reach each other by the node's own link; None for as many as the node has.
    """
    num_devices = sent_bytes.shape[-1]
    if num_devices == 1:
        return torch.zeros_like(sent_bytes)
    largest = sent_bytes.amax(dim=-1, keepdim=True)  # [*B, 1]
    near = min(num_devices, devices_per_host or spec.devices_per_node)
    far = num_devices - near
    seconds = within_node_s(largest * (near / num_devices), spec, near)
    if far:
        latency_s = spec.network_latency_s + far * PEER_S
        bandwidth = NETWORK_SHARE * spec.network_bytes_per_s
        seconds = torch.maximum(seconds, largest * (far / num_devices) / bandwidth + latency_s)
    return seconds.expand_as(sent_bytes).clone()


def ring_s(
    num_bytes: Float[Tensor, "*B"], num_devices: int, spec: AcceleratorSpec, devices_per_host: int, operation: Operation
) -> Float[Tensor, "*B"]:
    """Seconds of a reduce-scatter, an all-gather or an all-reduce over all devices; bytes as `collective_times` counts them.

    Each ring of NCCL enters and leaves a host once, so that the adapters of a host share what one device sends. The rings'
    share within a host and their share between hosts happen at once, so the slower one counts; each host more costs `PEER_S`.
    """
    near = min(num_devices, devices_per_host)
    seconds = within_node_s(num_bytes, spec, near, operation)
    if num_devices > near:
        hosts = -(-num_devices // near)
        sent_bytes = num_bytes * sent_share(num_devices, operation) / near
        latency_s = spec.network_latency_s + (hosts - 1) * PEER_S
        seconds = torch.maximum(seconds, sent_bytes / (NETWORK_SHARE * spec.network_bytes_per_s) + latency_s)
    return seconds


def host_exchange_s(
    host_dims: Float[Tensor, "*B H"],
    batch_size: int,
    group: int,
    spec: AcceleratorSpec,
    devices_per_host: int,
    operation: Operation,
) -> Float[Tensor, "*B H"]:
    """Seconds on the devices of each host until pooled vectors of tables on one host are where their samples are, or back.

    Args:
        host_dims: columns of the tables on each host.
        group: devices that share a table's rows, at most `devices_per_host`.
        operation: within a host: a reduce-scatter, on the way back an all-gather.
    """
    within_s = within_node_s(vector_bytes(host_dims, batch_size), spec, group, operation)
    within_s = torch.where(host_dims > 0, within_s, 0.0)
    hosts = host_dims.shape[-1]
    if hosts == 1:
        return within_s
    sent_bytes = vector_bytes(host_dims, batch_size) / group
    across_s = all_to_all_s(sent_bytes, spec, max(1, devices_per_host // group))
    return (within_s + across_s).amax(dim=-1, keepdim=True).expand_as(host_dims).clone()


def within_node_s(
    num_bytes: Float[Tensor, "*B"], spec: AcceleratorSpec, near: int, operation: Operation = "all_to_all"
) -> Float[Tensor, "*B"]:
    """Seconds of one collective among `near` devices of a node; bytes as `collective_times` counts them."""
    if near == 1:
        return torch.zeros_like(num_bytes)
    if spec.link_curve in PRESETS:
        faster = spec.link_bytes_per_s / PRESETS[spec.link_curve].link_bytes_per_s
        return curve_s(link_curve(spec.link_curve, near, operation), num_bytes / faster)
    share = _datasheet_share(spec.link_curve, near, operation) if spec.link_curve else 1.0
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
def link_curve(gpu: str, num_gpus: int, operation: Operation = "all_to_all") -> PchipInterpolator:
    """The curve of `num_gpus` of this kind, at least 2: logarithms of seconds over those of bytes, never falling."""
    return fit_link_curve(collective_times(operation)[gpu], num_gpus)


def fit_link_curve(times_us: Mapping[int, Mapping[int, float]], num_gpus: int) -> PchipInterpolator:
    """The curve through times by number of GPUs and bytes; between numbers it is interpolated in their logarithm.

    Beyond the largest measured number `m`, each doubling adds as much latency as the last measured one, and the rest grows
    with the share of the bytes that leaves a GPU, from `(m-1)/m` to `(n-1)/n`.
    """
    if num_gpus in times_us:
        return _curve_through(times_us[num_gpus])
    counts = sorted(times_us)
    curves = [_curve_through(times_us[count]) for count in counts]
    log_bytes = np.unique(np.concatenate([curve.x for curve in curves]))  # [K]
    at_counts = np.stack([curve_s(curve, torch.from_numpy(np.exp(log_bytes))).numpy() for curve in curves])  # [C, K]
    if num_gpus > counts[-1] and len(counts) > 1:
        (fewer, most), (before, last) = counts[-2:], at_counts[-2:]
        latency_s = max(last[0] - before[0], 0) * math.log(num_gpus / most, most / fewer)
        seconds = last * ((num_gpus - 1) / num_gpus) / ((most - 1) / most) + latency_s
    else:
        at = np.interp(np.log(num_gpus), np.log(counts), np.arange(len(counts)))
        low, part = int(at), float(at % 1)
        seconds = at_counts[low] ** (1 - part) * at_counts[min(low + 1, len(counts) - 1)] ** part
    return PchipInterpolator(log_bytes, np.log(seconds))


def _curve_through(times_us: Mapping[int, float]) -> PchipInterpolator:
    """The curve through times by bytes, after the least change that makes them rise."""
    sizes = sorted(times_us)
    rising = scipy.optimize.isotonic_regression(np.log([1e-6 * times_us[size] for size in sizes])).x
    return PchipInterpolator(np.log(sizes), rising)


def curve_s(curve: PchipInterpolator, num_bytes: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Seconds for these bytes, in their precision.

    Below the smallest measured size it takes as long as that; above the largest it grows in proportion.
    """
    wanted = num_bytes.double().clamp(min=1).log()
    within = wanted.clamp(float(curve.x[0]), float(curve.x[-1]))
    measured = torch.from_numpy(np.asarray(curve(within.numpy())))
    return (measured + (wanted - within).clamp(min=0)).exp().to(num_bytes.dtype)


@cache
def collective_times(operation: Operation = "all_to_all") -> Mapping[str, Mapping[int, Mapping[int, float]]]:
    """Microseconds by GPU, number of GPUs and bytes.

    Bytes are nccl-tests' size: what each sends in all in an all-to-all, what each begins with in a reduce-scatter or an
    all-reduce, and what each ends with in an all-gather.
    """
    times: dict[str, dict[int, dict[int, float]]] = {}
    with (MEASUREMENTS / "collectives.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["operation"] == operation:
                by_bytes = times.setdefault(row["gpu"], {}).setdefault(int(row["num_gpus"]), {})
                by_bytes[int(row["bytes_per_gpu"])] = float(row["time_us"])
    return times
