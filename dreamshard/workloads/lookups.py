"""Which rows each training sample looks up, in memory and as Parquet.

An Arrow list array *is* (offsets, values), so a file reaches the fused operator without a copy.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Lookups:
    """Rows of one table that a batch of samples looks up.

    Attributes:
        indices: `[N]` row indices, sample after sample; int32, or int64 where rows need it.
        offsets: `[B+1]` sample `b` looks up `indices[offsets[b]:offsets[b+1]]`; starts at 0, ends at N.
    """

    indices: Int[Tensor, " N"]
    offsets: Int[Tensor, " B+1"]

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return len(self.offsets) - 1


@dataclass(frozen=True)
class WorkloadTable:
    """One table as a source yields it, before its statistics are taken."""

    name: str
    rows: int
    dim: int
    lookups: Lookups


LookupSource = Callable[[str], Lookups]
"""Gives a table's lookups by its name; picklable, so that a rank in another process can use it."""
