"""Public times of FBGEMM's kernels beside those of the testbed `traced`, to which no figure of it is fitted.

The times are of FBGEMM's default kernels. `traced` counts what the newer lookup kernel does (`use_experimental_tbe`), which
has four rows in flight where the default one has one. That is one reason for ratios below 1; others are not known.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dreamshard.placement import Placement
from dreamshard.tables import concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.measured_kernels import ASSUMED_GPU, POWER
from dreamshard.testbeds.accelerators.public_measurements import KernelRow, kernel_rows
from dreamshard.testbeds.accelerators.specs import SPECS
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.traced import TracedTestbed
from dreamshard.workloads.lookups import Lookups, WorkloadTable
from dreamshard.workloads.table_statistics import statistics
from tests.benchmarks.measuring import Row

WIDEST = 256


@dataclass(frozen=True)
class Drawn:
    """Lookups of a row's tables by its distribution; each table draws its own."""

    row: KernelRow

    def __call__(self, name: str) -> Lookups:
        row, generator = self.row, np.random.default_rng(int(name))
        bag, batch_size = re.search(r"mean bag about ([\d.]+)", row.notes), row.batch_sizes[0]
        mean = float(bag[1]) if bag else row.pooling[0]
        lengths = generator.integers(0, round(2 * mean) + 1, batch_size) if bag else np.full(batch_size, int(mean))
        level = generator.random(int(lengths.sum()))
        if row.distinct:  # a power law: the inverse of its distribution function
            top = float(row.rows[0]) ** (1 - POWER)
            found = (1 - level * (1 - top)) ** (1 / (1 - POWER)) - 1
        else:
            found = level * row.rows[0]
        indices = np.minimum(found.astype(np.int64), row.rows[0] - 1).astype(np.int32)
        return Lookups(torch.from_numpy(indices), torch.from_numpy(np.concatenate([[0], lengths.cumsum()])))


def rows() -> Iterator[Row]:
    """Microseconds on `traced` beside those that were measured, for rows up to `WIDEST` wide in device memory."""
    for public in kernel_rows():
        of_sweep = public.gpu == "unknown (Meta, 2024)" and public.batch_sizes[0] == 65_536
        in_memory = "HBM (" in public.notes and "optimizer sgd" in public.notes and public.num_tables == 10
        if (of_sweep or in_memory) and public.dims[0] <= WIDEST:
            gpu = ASSUMED_GPU.get(public.gpu, public.gpu)
            traced_us, what = _traced_us(public), f"{gpu}, {public.operation}, dim {public.dims[0]}"
            yield {
                "name": f"{what}: on traced; the reference was measured",
                "value": traced_us,
                "unit": "us",
                "reference": public.time_us,
                "ratio": traced_us / public.time_us,
            }


def _traced_us(row: KernelRow) -> float:
    """Microseconds of the call, or of the lookup kernel by itself where that was measured."""
    lookups, spec = Drawn(row), SPECS[ASSUMED_GPU.get(row.gpu, row.gpu)]
    names = [str(t) for t in range(row.num_tables)]
    tables = concatenate([statistics(WorkloadTable(name, row.rows[0], row.dims[0], lookups(name))) for name in names])
    bed = TracedTestbed(TestbedSetup(num_devices=1, batch_size=row.batch_sizes[0], lookups=lookups), spec)
    costs = bed.measure(PlacementTask(tables, 1, 2**45), Placement(torch.zeros(len(names), dtype=torch.int64), 1)).costs
    call_ms = costs.forward_compute_ms if row.operation == "fwd" else costs.backward_compute_ms
    return 1e3 * float(call_ms[0])
