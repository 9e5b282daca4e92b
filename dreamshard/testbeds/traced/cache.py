"""A set-associative cache with sectored lines that evicts the line used least recently.

Lines are of 128 bytes in four sectors of 32; a miss fetches only the sectors that are wanted (NVIDIA on the developer forum,
"Pascal L1 cache", of Volta: "on miss the cache will only fetch the unique 32 byte sectors that missed"). 16 ways: Jia et al.,
"Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (arXiv 1804.06826), of the V100's L2; and the same number
in the configurations of the RTX 2060 and RTX 3070 that Accel-Sim (Khairy et al., ISCA 2020) validated on hardware. LRU is
an approximation: NVIDIA does not publish the policy of its L2.
"""

import numpy as np
import numpy.typing as npt

WAYS = 16

Bytes = npt.NDArray[np.uint8]
_COUNT = np.asarray([value.bit_count() for value in range(256)], dtype=np.uint8)


def missing_sectors(
    cache_set: npt.NDArray[np.integer], line: npt.NDArray[np.int64], sectors: Bytes, ways: int = WAYS
) -> Bytes:
    """`[N]` number of wanted sectors that are not in the cache, which starts out empty.

    All sets advance together, an access each.

    Args:
        cache_set: `[N]` ascending: accesses set by set, within each in order of time.
        line: `[N]` numbers of lines, at least 0.
        sectors: `[N]` bits of the wanted sectors.
        ways: lines of a set.
    """
    missing = np.zeros(len(line), dtype=np.uint8)
    repeats = np.zeros(len(line), dtype=bool)  # of the access just before in the set: a hit that changes nothing
    repeats[1:] = (cache_set[1:] == cache_set[:-1]) & (line[1:] == line[:-1]) & (sectors[1:] & ~sectors[:-1] == 0)
    kept = np.flatnonzero(~repeats)
    _, starts, counts = np.unique(cache_set[kept], return_index=True, return_counts=True)
    longest_first = np.argsort(-counts, kind="stable")
    starts, counts = starts[longest_first], counts[longest_first]
    held = np.full((len(starts), ways), -1, dtype=np.int64)
    valid, used = np.zeros((len(starts), ways), dtype=np.uint8), np.full((len(starts), ways), -1, dtype=np.int32)
    rows = np.arange(len(starts))
    active = len(counts) - np.searchsorted(counts[::-1], np.arange(counts.max(initial=0)), side="right")
    for step, number in enumerate(active.tolist()):
        access, row = kept[starts[:number] + step], rows[:number]
        wanted_line, wanted = line[access], sectors[access]
        way = np.where(held[:number] == wanted_line[:, None], -2, used[:number]).argmin(axis=1)
        has = np.where(held[row, way] == wanted_line, valid[row, way], 0).astype(np.uint8)
        missing[access] = _COUNT[wanted & ~has]
        held[row, way], valid[row, way], used[row, way] = wanted_line, has | wanted, step
    return missing
