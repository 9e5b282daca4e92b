"""The lookups of a table sorted by row, as the backward pass sorts them: the lookups of a row are one segment."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dreamshard.testbeds.traced.accesses import SECTOR_BYTES, Longs
from dreamshard.workloads.lookups import Lookups


@dataclass(frozen=True)
class SortedLookups:
    """One batch of lookups in both orders.

    Attributes:
        indices: `[N]` rows, sample after sample.
        offsets: `[B+1]` sample `b` looks up `indices[offsets[b]:offsets[b+1]]`.
        bag: `[N]` the sample of each lookup, sorted by row and then by sample.
        row: `[U]` the distinct rows, ascending.
        start: `[U+1]` where the segment of each row begins among the sorted lookups; ends with N.
    """

    indices: Longs
    offsets: Longs
    bag: Longs
    row: Longs
    start: Longs

    @classmethod
    def of(cls, lookups: Lookups) -> "SortedLookups":
        """Sort the lookups of a batch."""
        indices = lookups.indices.numpy().astype(np.int64)
        offsets = lookups.offsets.numpy().astype(np.int64)
        bits = max(1, int(len(offsets) - 1).bit_length())
        packed = (indices << bits) | np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        packed.sort()  # several times as fast as an argsort
        by_row = packed >> bits
        start = np.flatnonzero(np.diff(by_row, prepend=-1, append=-1 if not len(by_row) else by_row[-1] + 1))
        if not len(by_row):
            start = np.zeros(1, dtype=np.int64)
        return cls(indices, offsets, packed & ((1 << bits) - 1), by_row[start[:-1]], start)

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> Longs:
        """`[U]` lookups of each distinct row."""
        return np.diff(self.start)

    def segment_of(self, position: Longs) -> Longs:
        """The segment that holds each position among the sorted lookups."""
        return np.searchsorted(self.start, position, side="right") - 1

    def row_sectors(self, row_bytes: int) -> npt.NDArray[np.float64]:
        """`[U]` sectors of each distinct row that the row before does not share; rows of so many bytes lie side by side."""
        if row_bytes % SECTOR_BYTES == 0:
            return np.full(len(self.row), float(row_bytes // SECTOR_BYTES))
        first = self.row * row_bytes // SECTOR_BYTES
        last = ((self.row + 1) * row_bytes - 1) // SECTOR_BYTES
        shared = np.zeros(len(first), dtype=np.int64)
        shared[1:] = last[:-1] >= first[1:]
        return (last - first + 1 - shared).astype(np.float64)
