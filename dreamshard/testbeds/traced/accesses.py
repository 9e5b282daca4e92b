"""Accesses of one kernel to the cache in order, and the sampling of cache sets that makes replaying them cheap.

Sampling of sets (Puzak, 1985; Kessler, Hill and Wood, 1994): one set of `k` is simulated, with all accesses to it. Which
addresses share a set follows from a hash, as on GPUs, whose L2 spreads addresses over slices by one: of every `k`
consecutive lines, one goes to a simulated set.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LINE_BYTES = 128  # of L1 and L2 (NVIDIA on the developer forum, "Pascal L1 cache": lines of 128 bytes in 4 sectors)
SECTOR_BYTES = 32  # the same; the smallest memory transaction (CUDA programming guide, "Device Memory Accesses")
SECTORS = LINE_BYTES // SECTOR_BYTES
_LOG2_LINE = 7
_CHUNK = 2**15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64 (Steele, Lea and Flood, 2014)

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Accesses:
    """Accesses to the simulated sets, in order; `N` of them.

    Attributes:
        time: `[N]` when the access happens, in steps of all resident warps, from the start of the table's part of a kernel.
        cache_set: `[N]` number of the simulated set.
        line: `[N]` number of the line, unique within a table and kernel phase.
        sectors: `[N]` bits of the sectors of the line that are wanted.
        fresh: `[N]` number of these that no earlier access of the table in the same phase wanted.
    """

    time: npt.NDArray[np.float32]
    cache_set: npt.NDArray[np.int32]
    line: Longs
    sectors: npt.NDArray[np.uint8]
    fresh: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in vars(self).values())


@dataclass(frozen=True)
class Touched:
    """What a region's blocks touch in simulated sets, before it has a time.

    Attributes:
        block: `[N]` index of the block that touches the line.
    """

    block: Longs
    cache_set: npt.NDArray[np.int32]
    line: Longs
    sectors: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SetSampler:
    """Decides which lines are simulated, and in which set.

    Attributes:
        num_sets: simulated sets.
        log2_k: one of `2 ** log2_k` lines is simulated.
        seed: another one simulates other lines.
    """

    num_sets: int
    log2_k: int
    seed: int

    @property
    def k(self) -> int:
        """Lines of which one is simulated."""
        return 1 << self.log2_k

    def touched(self, region: str, first_byte: Longs, num_bytes: int, region_line: int = 0) -> Touched:
        """The simulated lines that blocks of a region touch.

        Args:
            region: name of the region, which the hash depends on.
            first_byte: `[N]` where each block begins in the region.
            num_bytes: of a block.
            region_line: added to line numbers, so that regions of one table have different lines.
        """
        ends = int(first_byte.max(initial=-num_bytes)) + num_bytes
        line_of = self._chooser(region, -(-ends // (LINE_BYTES << self.log2_k)), len(first_byte))
        found = [_NOTHING]
        for begin in range(0, len(first_byte), _CHUNK):  # arrays that fit into the processor's cache
            first_bytes = first_byte[begin : begin + _CHUNK]
            first, last = first_bytes >> _LOG2_LINE, (first_bytes + (num_bytes - 1)) >> _LOG2_LINE
            group, last_group = first >> self.log2_k, last >> self.log2_k
            for offset in range(int((last_group - group).max()) + 1):
                line = line_of(np.minimum(group + offset, last_group))
                block = np.flatnonzero((line >= first) & (line <= last) & (last_group >= group + offset))
                found.append((block + begin, line[block]))
        block, line = (np.concatenate(parts) for parts in zip(*found, strict=True))
        in_line = first_byte[block] - line * LINE_BYTES  # below 0 where the block begins in a line before
        low = np.maximum(in_line, 0) // SECTOR_BYTES
        high = np.minimum(in_line + (num_bytes - 1), LINE_BYTES - 1) // SECTOR_BYTES
        sectors = ((1 << (high + 1)) - (1 << low)).astype(np.uint8)
        mixed = self._mixed(region, line >> self.log2_k)
        cache_set = (mixed >> np.uint64(self.log2_k)) % np.uint64(self.num_sets)
        return Touched(block, cache_set.astype(np.int32), line + region_line, sectors)

    def _chooser(self, region: str, num_groups: int, num_blocks: int) -> Callable[[Longs], Longs]:
        """The line that is simulated of each group of `k`: from a list of all groups where these are fewer than blocks."""

        def line_of(groups: Longs) -> Longs:
            place = (self._mixed(region, groups) & np.uint64(self.k - 1)).astype(np.int64)
            return (groups << self.log2_k) + place

        return line_of(np.arange(num_groups)).__getitem__ if num_groups < num_blocks else line_of

    def _mixed(self, region: str, group: Longs) -> npt.NDArray[np.uint64]:
        """`[N]` hashes of groups of lines."""
        salt = int.from_bytes(hashlib.sha256(f"{self.seed} {region}".encode()).digest()[:8])
        mixed = group.astype(np.uint64) + np.uint64(salt)  # wraps around
        for shift, factor in zip((30, 27), _MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


def in_order(parts: list[tuple[Touched, Floats]]) -> Accesses:
    """The accesses of all regions of a kernel in order of time; `fresh` counts each sector once.

    Args:
        parts: of each region what is touched, and `[N]` when.
    """
    time = np.concatenate([when for _, when in parts])
    order = np.argsort(time, kind="stable")
    line = np.concatenate([touched.line for touched, _ in parts])[order]
    sectors = np.concatenate([touched.sectors for touched, _ in parts])[order]
    cache_set = np.concatenate([touched.cache_set for touched, _ in parts])[order]
    return Accesses(time[order].astype(np.float32), cache_set, line, sectors, first_wanted(line, sectors))


def first_wanted(line: Longs, sectors: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`[N]` number of sectors that each access is the first to want."""
    wanted = (sectors[:, None] >> np.arange(SECTORS, dtype=np.uint8)) & 1  # [N, 4]
    access, sector = np.nonzero(wanted)
    _, first = np.unique(line[access] * SECTORS + sector, return_index=True)
    return np.bincount(access[first], minlength=len(line)).astype(np.uint8)
