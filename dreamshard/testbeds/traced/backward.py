"""The kernels that sum the gradients of each row and update it: accesses and work of one table, as in FBGEMM's CUDA code.

From `embedding_backward_split_kernel_{cta,warp}_template.cu` and `embedding_backward_split_template.cu` (pytorch/FBGEMM):

- The lookups are sorted by row. A warp sums at most 32 gradients of a row: rows with more are shared by the warps of a
  block (first kernel), those with more than 1024 by several blocks, which add up their sums by atomic additions. All
  other rows take one warp each (second kernel).
- Both kernels go table by table, within a table by ascending row. A gradient is read from its sample's vector, so gradients
  are accessed in the order of the sorted lookups, and their reuse depends on how far apart a sample's lookups lie in it.
- The sum updates the row and the optimizer's state, both read and written once.

A whole warp takes a segment, whatever its width; builds that give narrow rows to parts of a warp are not modelled. That a
warp has 4 gradients in flight, as in the lookup kernel, is an assumption.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dreamshard.tables import BYTES_PER_ELEMENT_STATE, BYTES_PER_ROW_STATE, Optimizer
from dreamshard.testbeds.traced.accesses import (
    LINE_BYTES,
    SECTOR_BYTES,
    Accesses,
    Longs,
    SetSampler,
    Touched,
    first_wanted,
    in_order,
)
from dreamshard.testbeds.traced.forward import (
    ELEMENTS_PER_LANE,
    INSTRUCTIONS_PER_LOAD,
    INSTRUCTIONS_PER_WARP,
    LANES,
    ROWS_IN_FLIGHT,
    VECTOR_BYTES,
    RowLayout,
)
from dreamshard.testbeds.traced.sorted_lookups import SortedLookups
from dreamshard.testbeds.traced.work import KernelWork

PER_WARP = 32  # gradients that a warp sums: max_segment_length_per_warp
PER_BLOCK = 1024  # gradients that a block sums: max_segment_length_per_cta
POSITION_BYTES = 8  # of the sorted position and the segment's bounds, per lookup
GRADIENTS, WEIGHTS = 0, 1 << 40  # first line numbers of the regions
_FULL_WARP_STEPS = PER_WARP // ROWS_IN_FLIGHT + 1  # and one for the update, or for handing the sum over


def backward(
    lookups: SortedLookups, layout: RowLayout, optimizer: Optimizer, sampler: SetSampler, resident_warps: int
) -> list[tuple[Accesses, KernelWork]]:
    """Accesses and work of both kernels for one table: that of long segments, then that of all others.

    Time is as in `forward`. The second kernel finds what the first left in the cache, so its `fresh` sectors and its
    `distinct` ones are those that the first does not touch.
    """
    gradients = sampler.touched(
        f"{layout.region} gradients", lookups.bag * layout.vector_bytes, layout.dim * VECTOR_BYTES, GRADIENTS
    )
    weights = sampler.touched(f"{layout.region} weights", lookups.row * layout.row_bytes, layout.row_bytes, WEIGHTS)
    segment = lookups.segment_of(gradients.block)  # [N]
    is_long = lookups.counts > PER_WARP  # [U]
    steps = _steps(lookups.counts)  # [U]
    seen = np.zeros(lookups.batch_size, dtype=bool)  # samples whose gradients an earlier kernel has read
    accesses, works = [], []
    for chosen in (is_long, ~is_long):
        own = np.where(chosen, steps, 0)
        begin = (np.cumsum(own) - own) / resident_warps  # [U]
        read, updated = chosen[segment], chosen[weights.block]
        position = gradients.block[read] - lookups.start[segment[read]]
        read_at = begin[segment[read]] + position // PER_WARP * (_FULL_WARP_STEPS / resident_warps)
        read_at += position % PER_WARP // ROWS_IN_FLIGHT
        updated_at = begin[weights.block[updated]] + np.minimum(own[weights.block[updated]], _FULL_WARP_STEPS) - 1
        accesses.append(in_order([(_part(gradients, read), read_at), (_part(weights, updated), updated_at)]))
        bags = np.zeros(lookups.batch_size, dtype=bool)
        bags[lookups.bag[np.repeat(chosen, lookups.counts)]] = True
        works.append(_work(lookups, layout, optimizer, chosen, own, int((bags & ~seen).sum())))
        seen |= bags
    first, second = accesses
    fresh = first_wanted(np.concatenate([first.line, second.line]), np.concatenate([first.sectors, second.sectors]))
    return [(first, works[0]), (replace(second, fresh=fresh[len(first.line) :]), works[1])]


def _steps(counts: Longs) -> Longs:
    """`[U]` steps of the warps of each segment: one for 4 gradients, one more per warp for the update or the reduction."""
    rest = counts % PER_WARP
    return counts // PER_WARP * _FULL_WARP_STEPS + np.where(rest > 0, -(-rest // ROWS_IN_FLIGHT) + 1, 0)


def _part(touched: Touched, chosen: npt.NDArray[np.bool_]) -> Touched:
    """What the chosen blocks touch."""
    return Touched(touched.block[chosen], touched.cache_set[chosen], touched.line[chosen], touched.sectors[chosen])


def _work(
    lookups: SortedLookups,
    layout: RowLayout,
    optimizer: Optimizer,
    chosen: npt.NDArray[np.bool_],
    steps: Longs,
    new_bags: int,
) -> KernelWork:
    """Work on the chosen segments.

    Args:
        steps: `[U]` of each segment; 0 for the others.
        new_bags: samples whose gradients no earlier kernel has read.
    """
    counts = lookups.counts[chosen]
    if not len(counts):
        return KernelWork()
    num_gradients, num_rows = float(counts.sum()), float(len(counts))
    warps = float((-(-counts // PER_WARP)).sum())
    slices = -(-layout.dim // (LANES * ELEMENTS_PER_LANE))
    vector_lines, vector_sectors = -(-layout.vector_bytes // LINE_BYTES), layout.vector_bytes // SECTOR_BYTES
    row_sectors = float(lookups.row_sectors(layout.row_bytes)[chosen].sum())
    state_sectors = _state_sectors(lookups, layout, optimizer, chosen)
    blocks = -(-counts // PER_BLOCK)
    atomics = float(blocks[blocks > 1].sum()) * vector_sectors
    loads = (num_gradients + 2 * num_rows) * slices
    return KernelWork(
        warps=warps,
        steps=float(steps.sum()),
        longest=float(min(_FULL_WARP_STEPS, steps.max())),
        loads_per_step=(num_gradients + num_rows) / float(steps.sum()),
        lines=num_gradients * vector_lines + 2 * (row_sectors + state_sectors) / (LINE_BYTES // SECTOR_BYTES),
        sectors=num_gradients * vector_sectors + 2 * (row_sectors + state_sectors),
        distinct=new_bags * vector_sectors + row_sectors,
        streamed_bytes=num_gradients * POSITION_BYTES + state_sectors * SECTOR_BYTES,
        written_bytes=(row_sectors + state_sectors) * SECTOR_BYTES,
        instructions=loads * INSTRUCTIONS_PER_LOAD + warps * INSTRUCTIONS_PER_WARP,
        atomics=atomics,
    )


def _state_sectors(
    lookups: SortedLookups, layout: RowLayout, optimizer: Optimizer, chosen: npt.NDArray[np.bool_]
) -> float:
    """Sectors of the optimizer's state that the chosen rows need: per row, per element, or both."""
    kinds = (BYTES_PER_ROW_STATE[optimizer], layout.dim * BYTES_PER_ELEMENT_STATE[optimizer])
    return sum((float(lookups.row_sectors(num_bytes)[chosen].sum()) for num_bytes in kinds if num_bytes), 0.0)
