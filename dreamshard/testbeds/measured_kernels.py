"""The public kernel measurements beside what a preset predicts for them."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from dreamshard.tables import NUM_BINS, Tables
from dreamshard.testbeds.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.public_measurements import KernelRow, kernel_rows
from dreamshard.testbeds.roofline import phase_costs, table_loads
from dreamshard.testbeds.specs import SPECS

POWER = 1.05  # of the sources' power law: row x of E is looked up in proportion to x ** -POWER
ASSUMED_GPU = {"unknown (Meta, 2024)": "a100", "unknown (Meta devgpu Jan 2021, 607 GB/s: V100 likely)": "v100"}
"""Presets that stand for GPUs which the sources do not name."""

KERNEL = "kernel"
GROUPS = {
    KERNEL: "kernels with all rows in device memory",
    "call": "calls so small that the host's launches decide",
    "older kernel": "a backward kernel from before FBGEMM's sort",
    "host memory": "rows wholly or partly in host memory, which placements here never use",
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


@cache
def kernel_checks() -> tuple[KernelCheck, ...]:
    """Every row, in the file's order."""
    return tuple(check(row) for row in kernel_rows())


def check(row: KernelRow) -> KernelCheck:
    """Compare one row with its GPU's preset."""
    spec = SPECS[ASSUMED_GPU.get(row.gpu, row.gpu)]
    group = group_of(row)
    covered = group in (KERNEL, "call", "unexplained")
    return KernelCheck(row=row, group=group, spec=spec, predicted_us=predict_us(row, spec) if covered else None)


def group_of(row: KernelRow) -> str:
    """The group of `GROUPS` that a row belongs to, by what its source notes."""
    words = {"UVM": "host memory", "atomic": "older kernel", "not evaluated": "unexplained"}
    for word, group in words.items():
        if word in row.notes:
            return group
    return "call" if "bound" in row.notes or row.gpu == "b200" else KERNEL


def predict_us(row: KernelRow, spec: AcceleratorSpec) -> float:
    """Microseconds that the model gives for the row's operation."""
    batch_size = row.batch_sizes[0]
    loads = table_loads(tables_of(row), batch_size, "fp16" if row.precision == "fp16" else "fp32", "sgd")
    costs = phase_costs(loads.sum(dim=0)[None], batch_size, spec)
    forward_ms, backward_ms = float(costs.forward_compute_ms[0]), float(costs.backward_compute_ms[0])
    return 1e3 * {"fwd": forward_ms, "bwd": backward_ms, "fwd+bwd": forward_ms + backward_ms}[row.operation]


def tables_of(row: KernelRow) -> Tables:
    """The tables of a row, with the statistics expected of its distribution of lookups."""
    kinds = [index % len(row.rows) for index in range(row.num_tables)]
    several = len(row.dims) > 1
    rows = [row.rows[kind] for kind in kinds]
    dims = [row.dims[kind if several else 0] for kind in kinds]
    pooling = [row.pooling[kind if several else 0] for kind in kinds]
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
    reached = stats.poisson.cdf(upper[:, None], mean)  # [17, S]
    reached[1:] -= reached[:-1].copy()
    reached[0] -= stats.poisson.pmf(0, mean)
    return np.asarray((reached * size).sum(axis=1))
