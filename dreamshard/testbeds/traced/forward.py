"""The lookup kernel: accesses and work of one table, as FBGEMM's CUDA code runs it.

From `embedding_forward_split_kernel_v2_template.cu` (pytorch/FBGEMM at 07f84df8):

- Warps go table by table, within a table sample by sample. A warp sums the rows of one bag, at most 128 columns of them;
  wider rows take several warps. Where bags have 8 lookups or fewer on average, a warp takes 32 bags in turn.
- A row is read by a group of 8, 16 or 32 lanes, 4 elements a lane, by the width of the table itself (not of the widest table
  of the shard); a warp of 32 bags always reads whole rows by all its lanes. A group has 4 rows in flight.
- All warps that a multiprocessor can hold are resident (the kernel's launch bounds).

This is the kernel of `use_experimental_tbe`. The default one has a single row in flight per group of lanes, and is slower for
narrow rows.
"""

from dataclasses import dataclass

import numpy as np

from dreamshard.testbeds.traced.accesses import LINE_BYTES, SECTOR_BYTES, Accesses, Floats, Longs, SetSampler, in_order
from dreamshard.testbeds.traced.sorted_lookups import SortedLookups
from dreamshard.testbeds.traced.work import KernelWork

LANES = 32
ELEMENTS_PER_LANE = 4
ROWS_IN_FLIGHT = 4  # per group of lanes
SHORT_BAGS = 8  # mean lookups per bag up to which a warp takes 32 bags
BAGS_PER_WARP = 32
VECTOR_BYTES = 4  # of an element of pooled vectors and their gradients: fp32
INDEX_BYTES = 8  # int64, which KeyedJaggedTensors hold by default
OFFSET_BYTES = 8
INSTRUCTIONS_PER_LOAD = 8  # pointer from shared memory, address, load, 4 additions, loop: read off the inner loop
INSTRUCTIONS_PER_WARP = 60  # offsets, table's shape, pointers, reduction over groups, output: an estimate
OUTPUTS, INDICES, ROWS = 1 << 40, 1 << 41, 0  # first line numbers of the regions


@dataclass(frozen=True)
class RowLayout:
    """How a table lies in memory.

    Attributes:
        region: name of its weights; columns of one table are different regions.
        dim: elements of a row.
        row_bytes: bytes of a row, side by side.
    """

    region: str
    dim: int
    row_bytes: int

    @property
    def vector_bytes(self) -> int:
        """Bytes from one sample's pooled vector to the next, in whole sectors."""
        return -(-self.dim * VECTOR_BYTES // SECTOR_BYTES) * SECTOR_BYTES


def forward(
    lookups: SortedLookups, layout: RowLayout, sampler: SetSampler, resident_warps: int
) -> tuple[Accesses, KernelWork]:
    """Accesses and work of the lookup kernel for one table.

    Time is in steps of all `resident_warps`: a warp starts once the steps of all warps before it are done at that rate.
    """
    num_lookups, batch_size = len(lookups.indices), lookups.batch_size
    slices = -(-layout.dim // (LANES * ELEMENTS_PER_LANE))
    is_short = num_lookups <= SHORT_BAGS * batch_size
    first_lookup = np.append(lookups.offsets[: -1 : BAGS_PER_WARP if is_short else 1], num_lookups)  # [W+1]
    group = LANES if is_short else _lanes(layout.dim)
    at_once = ROWS_IN_FLIGHT * LANES // group
    length = np.diff(first_lookup)  # [W]
    steps = 1 + -(-length // at_once)  # [W] the first one reads the offsets
    begin = (np.cumsum(steps) - steps) * (slices / resident_warps)  # [W]
    accesses = _accesses(lookups, layout, sampler, first_lookup, begin, steps, at_once)
    loads = -(-num_lookups * group // LANES) * slices
    lines, sectors = _of_rows(lookups.indices, layout.row_bytes)
    output_lines = batch_size * layout.vector_bytes / LINE_BYTES
    index_bytes = num_lookups * INDEX_BYTES + (batch_size + 1) * OFFSET_BYTES
    return accesses, KernelWork(
        warps=float(len(length) * slices),
        steps=float(steps.sum()) * slices,
        longest=float(steps.max(initial=0)),
        loads_per_step=num_lookups * slices / max(1.0, float(steps.sum()) * slices),
        lines=lines + output_lines + index_bytes / LINE_BYTES,
        sectors=sectors + output_lines * (LINE_BYTES // SECTOR_BYTES) + index_bytes / SECTOR_BYTES,
        distinct=float(lookups.row_sectors(layout.row_bytes).sum()),
        streamed_bytes=float(index_bytes),
        written_bytes=float(batch_size * layout.vector_bytes),
        instructions=float(loads * INSTRUCTIONS_PER_LOAD + len(length) * slices * INSTRUCTIONS_PER_WARP),
    )


def _lanes(dim: int) -> int:
    """Lanes that read a row together."""
    lanes = -(-dim // ELEMENTS_PER_LANE)
    return 8 if lanes <= 8 else 16 if lanes <= 16 else LANES


def _accesses(
    lookups: SortedLookups,
    layout: RowLayout,
    sampler: SetSampler,
    first_lookup: Longs,
    begin: Floats,
    steps: Longs,
    at_once: int,
) -> Accesses:
    """Rows in the order of the lookups, the indices before them, and the pooled vector after a bag."""
    rows = sampler.touched(layout.region, lookups.indices * layout.row_bytes, layout.row_bytes, ROWS)
    index_lines = np.arange(0, len(lookups.indices) * INDEX_BYTES, LINE_BYTES)
    indices = sampler.touched(f"{layout.region} indices", index_lines, LINE_BYTES, INDICES)
    bags = np.arange(lookups.batch_size)
    outputs = sampler.touched(
        f"{layout.region} outputs", bags * layout.vector_bytes, layout.dim * VECTOR_BYTES, OUTPUTS
    )

    def when(position: Longs) -> Floats:
        warp = np.minimum(np.searchsorted(first_lookup, position, side="right") - 1, len(begin) - 1)
        return begin[warp] + 1 + (position - first_lookup[warp]) // at_once

    read_at, indices_at = when(rows.block), when(indices.block * (LINE_BYTES // INDEX_BYTES)) - 1
    warp_of_bag = outputs.block // (1 if len(begin) == lookups.batch_size else BAGS_PER_WARP)
    return in_order([(indices, indices_at), (rows, read_at), (outputs, begin[warp_of_bag] + steps[warp_of_bag])])


def _of_rows(rows: Longs, row_bytes: int) -> tuple[float, float]:
    """Lines and sectors of all reads of rows."""
    first, last = rows * row_bytes, (rows + 1) * row_bytes - 1

    def touched(unit: int) -> float:
        if row_bytes % unit == 0 or unit % row_bytes == 0:  # aligned
            return float(len(rows) * -(-row_bytes // unit))
        return float((last // unit - first // unit + 1).sum())

    return touched(LINE_BYTES), touched(SECTOR_BYTES)
