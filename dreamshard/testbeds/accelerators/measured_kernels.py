"""The public kernel measurements beside what a preset predicts for them."""

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import BYTES_PER_WEIGHT, NUM_BINS, Optimizer, Precision, Tables
from dreamshard.testbeds.accelerators import kernels
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.loads import (
    FIRST_BYTES,
    GRAD_BYTES,
    READ_BYTES,
    STREAM_BYTES,
    UNIQUE,
    UPDATE_BYTES,
    table_loads,
)
from dreamshard.testbeds.accelerators.placed_kernels import host_bytes_per_s
from dreamshard.testbeds.accelerators.public_measurements import KernelRow, kernel_rows
from dreamshard.testbeds.accelerators.specs import SPECS

POWER = 1.05  # of the sources' power law: row x of E is looked up in proportion to x ** -POWER
ADAM_ROWS = 3  # a row and its two moments, each as wide, are read and written
ASSUMED_GPU = {"unknown (Meta, 2024)": "a100", "unknown (Meta devgpu Jan 2021, 607 GB/s: V100 likely)": "v100"}
"""Presets that stand for GPUs which the sources do not name."""

KERNEL, CALL, HOST = "kernel", "call", "host memory"
GROUPS = {
    KERNEL: "kernels with all rows in device memory",
    CALL: "calls so small that the host's launches decide",
    HOST: "rows wholly or partly in host memory",
    "unexplained": "nine times slower than the same source's other list, which the source does not explain",
}


@dataclass(frozen=True, kw_only=True)
class KernelCheck:
    """A measured row, its group of `GROUPS`, the preset it is compared with and the predicted microseconds.

    `predicted_us` is None where the model does not cover the row.
    """

    row: KernelRow
    group: str
    spec: AcceleratorSpec
    predicted_us: float | None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.predicted_us is None else self.predicted_us / self.row.time_us


def kernel_checks() -> tuple[KernelCheck, ...]:
    """Every row in the file's order, then the operators' times among the notes."""
    return tuple(check(row) for row in (*kernel_rows(), *_operator_rows()))


@cache
def kernel_checks_of(gpu: str) -> tuple[KernelCheck, ...]:
    """The rows of a GPU, by the name that the source gives it."""
    return tuple(check(row) for row in (*kernel_rows(), *_operator_rows()) if row.gpu == gpu)


def _operator_rows() -> list[KernelRow]:
    """Rows for the times of PyTorch's operator that stand in the notes of kernels' times."""
    found = [(row, re.search(r"PyTorch op time (\d+) us", row.notes)) for row in kernel_rows()]
    return [replace(row, operation="op", time_us=float(match[1])) for row, match in found if match]


def check(row: KernelRow) -> KernelCheck:
    """Compare one row with its GPU's preset."""
    spec = SPECS[ASSUMED_GPU.get(row.gpu, row.gpu)]
    group = group_of(row)
    known = (
        group != HOST or row.operation == "bwd"
    )  # while a cache fills, as in the source, it misses more than a full one
    return KernelCheck(row=row, group=group, spec=spec, predicted_us=predict_us(row, spec) if known else None)


def group_of(row: KernelRow) -> str:
    """The group of `GROUPS` that a row belongs to, by what its source notes."""
    if "UVM" in row.notes:
        return HOST
    if "not evaluated" in row.notes:
        return "unexplained"
    if row.operation == "op" or "bound" in row.notes or row.gpu == "b200":
        return CALL
    return KERNEL


def predict_us(row: KernelRow, spec: AcceleratorSpec) -> float:
    """Microseconds that the model gives for the row's operation: the kernel or the call, as the source measured."""
    batch_size = row.batch_sizes[0]
    loads = _loads(row, spec)
    if "atomic" in row.notes:
        return 1e6 * float(_atomic_update_s(loads, spec))
    if row.operation == "fwd" and ("nvprof" in row.notes or "kernel only" in row.notes):
        return 1e6 * float(kernels.forward_kernel_s(loads, batch_size, spec))
    if group_of(row) == HOST:
        return 1e6 * float(_host_update_s(row, loads, spec))
    forward_s = float(kernels.forward_call_s(loads, batch_size, spec))
    backward_s = float(kernels.backward_call_s(loads, batch_size, spec))
    both_s = {"op": forward_s, "fwd": forward_s, "bwd": backward_s, "fwd+bwd": forward_s + backward_s}
    return 1e6 * both_s[row.operation]


def _loads(row: KernelRow, spec: AcceleratorSpec) -> Float[Tensor, " K"]:
    """Summed loads of all tables; rows that the call before left in the cache count as read before.

    Benchmarks repeat one call, so a share of its rows is still there, as far as all that the call touches fits.
    """
    rowwise = row.operation == "fwd+bwd"  # only those sources use it
    optimizer: Optimizer = "rowwise_adagrad" if rowwise else "sgd"
    precision: Precision = "fp16" if row.precision == "fp16" else "fp32"
    loads = table_loads(tables_of(row), row.batch_sizes[0], precision, optimizer).sum(dim=0)  # [K]
    if "optimizer adam" in row.notes:
        loads[UPDATE_BYTES] *= ADAM_ROWS
    touched_bytes = float(loads[STREAM_BYTES] + loads[FIRST_BYTES])
    loads[FIRST_BYTES] *= 1 - min(1.0, spec.l2_bytes / touched_bytes)
    return loads


def _atomic_update_s(loads: Float[Tensor, " K"], spec: AcceleratorSpec) -> Float[Tensor, ""]:
    """Seconds of the update before FBGEMM sorted: every lookup reads its row and adds to it, by atomics."""
    update_s = 2 * loads[READ_BYTES] / (kernels.UPDATE_SHARE * spec.memory_bytes_per_s)
    return update_s + loads[GRAD_BYTES] / (kernels.BANDWIDTH_SHARE * spec.memory_bytes_per_s)


def _host_update_s(row: KernelRow, loads: Float[Tensor, " K"], spec: AcceleratorSpec) -> Float[Tensor, ""]:
    """Seconds of the update where Adam's moments are in host memory, and the rows too unless they are cached."""
    row_bytes = loads[UNIQUE] * row.dims[0] * BYTES_PER_WEIGHT["fp32"]
    cached = "CACHING" in row.notes
    moved = (0 if cached else 1) + (ADAM_ROWS - 1 if "optimizer adam" in row.notes else 0)
    on_device = loads.clone()
    on_device[UPDATE_BYTES] = 2 * row_bytes * cached
    return kernels.backward_call_s(on_device, row.batch_sizes[0], spec) + moved * row_bytes / host_bytes_per_s(spec)


def tables_of(row: KernelRow) -> Tables:
    """The tables of a row, with the statistics expected of its distribution of lookups."""
    bag = re.search(r"mean bag about ([\d.]+)", row.notes)
    kinds = [index % len(row.rows) for index in range(row.num_tables)]
    several = len(row.dims) > 1
    rows = [row.rows[kind] for kind in kinds]
    dims = [row.dims[kind if several else 0] for kind in kinds]
    pooling = [float(bag[1]) if bag else row.pooling[kind if several else 0] for kind in kinds]
    lookups = [factor * row.batch_sizes[0] for factor in pooling]
    powers = POWER if row.distinct else 0.0
    counts = [_expected_rows(size, count, powers) for size, count in zip(rows, lookups, strict=True)]  # [T][17]
    unique = np.array([found.sum() for found in counts])
    return Tables(
        tuple(f"table-{index}" for index in range(row.num_tables)),
        torch.tensor(rows),
        torch.tensor(dims),
        torch.tensor(pooling, dtype=torch.float64),
        torch.from_numpy(np.stack(counts) / unique[:, None]).float(),
        torch.tensor(lookups).round().long(),
        torch.from_numpy(unique).round().long(),
    )


@cache
def _expected_rows(rows: int, lookups: float, power: float) -> npt.NDArray[np.float64]:
    """`[17]` expected number of rows that are looked up (0,1], (1,2], (2,4] ... times."""
    edges = np.unique(np.concatenate([np.arange(1, min(rows, 1000) + 2), np.geomspace(1, rows + 1, 4000).round()]))
    mass = edges ** (1 - power)
    size = np.diff(edges)  # rows of each stretch, all looked up about as often
    mean = lookups * np.diff(mass) / (mass[-1] - mass[0]) / size
    upper = np.append(2.0 ** np.arange(NUM_BINS - 1), np.inf)
    reached = scipy.stats.poisson.cdf(upper[:, None], mean)  # [17, S]
    reached[1:] -= reached[:-1].copy()
    reached[0] -= scipy.stats.poisson.pmf(0, mean)
    return np.asarray((reached * size).sum(axis=1))
