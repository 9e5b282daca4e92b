"""Everything that is kept of one table: its accesses and work in all kernels, which do not depend on its device."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dreamshard.tables import Optimizer
from dreamshard.testbeds.traced.accesses import Accesses, SetSampler
from dreamshard.testbeds.traced.backward import backward
from dreamshard.testbeds.traced.forward import RowLayout, forward
from dreamshard.testbeds.traced.sorted_lookups import SortedLookups
from dreamshard.testbeds.traced.work import KernelWork
from dreamshard.workloads.lookups import Lookups

KERNELS = ("forward", "long_segments", "short_segments")
KEPT_BYTES = 2**29


@dataclass(frozen=True)
class TableTrace:
    """One table, or columns of one, in all kernels.

    Attributes:
        accesses: of each of `KERNELS`.
        work: of each of `KERNELS`.
        lookups: of the batch.
        rows: hash size.
    """

    accesses: tuple[Accesses, ...]
    work: tuple[KernelWork, ...]
    lookups: int
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of the accesses."""
        return sum(accesses.nbytes for accesses in self.accesses)


def trace(
    lookups: Lookups, layout: RowLayout, rows: int, optimizer: Optimizer, sampler: SetSampler, resident_warps: int
) -> TableTrace:
    """Trace one batch of a table."""
    ordered = SortedLookups.of(lookups)
    kernels = [
        forward(ordered, layout, sampler, resident_warps),
        *backward(ordered, layout, optimizer, sampler, resident_warps),
    ]
    accesses, work = zip(*kernels, strict=True)
    return TableTrace(accesses, work, len(ordered.indices), rows)


class TraceCache:
    """The traces that were used last, up to `KEPT_BYTES`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, TableTrace] = OrderedDict()
        self._nbytes = 0

    def get(self, key: Hashable, make: Callable[[], TableTrace]) -> TableTrace:
        """The trace kept under `key`, made if there is none."""
        if key not in self._kept:
            self._kept[key] = make()
            self._nbytes += self._kept[key].nbytes
            while self._nbytes > KEPT_BYTES and len(self._kept) > 1:
                self._nbytes -= self._kept.popitem(last=False)[1].nbytes
        self._kept.move_to_end(key)
        return self._kept[key]
