"""The cache against a straightforward one, and what any cache must do."""

from collections import OrderedDict

import numpy as np
import pytest

from dreamshard.testbeds.traced.cache import missing_sectors

ALL = 0b1111


def straightforward(cache_set, line, sectors, ways):
    """Access by access, with an ordered dictionary for each set."""
    sets: dict[int, OrderedDict[int, int]] = {}
    missing = []
    for s, x, wanted in zip(cache_set.tolist(), line.tolist(), sectors.tolist(), strict=True):
        held = sets.setdefault(s, OrderedDict())
        has = held.pop(x, 0)
        missing.append((wanted & ~has).bit_count())
        held[x] = has | wanted
        if len(held) > ways:
            held.popitem(last=False)
    return np.asarray(missing)


def drawn(seed, count=3000, sets=5, lines=60):
    generator = np.random.default_rng(seed)
    cache_set = np.sort(generator.integers(0, sets, count) ** 2)  # of uneven lengths, with gaps
    line = (lines * generator.random(count) ** 3).astype(np.int64)  # some much hotter than others
    sectors = generator.choice(np.asarray([1, 2, 3, 8, 12, ALL], dtype=np.uint8), count)
    return cache_set, line, sectors


def of_one_set(lines, ways):
    line = np.asarray(lines, dtype=np.int64)
    full = np.full(len(line), ALL, dtype=np.uint8)
    return missing_sectors(np.zeros(len(line), dtype=np.int64), line, full, ways).tolist()


@pytest.mark.parametrize("ways", [1, 2, 8, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_misses_what_a_straightforward_cache_misses(seed, ways):
    trace = drawn(seed)
    assert missing_sectors(*trace, ways=ways).tolist() == straightforward(*trace, ways).tolist()


def test_a_larger_cache_never_misses_more():
    trace = drawn(2)
    totals = [int(missing_sectors(*trace, ways=ways).sum()) for ways in (1, 2, 4, 8, 16, 64)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[-1]


def test_the_line_used_least_recently_is_evicted():
    assert of_one_set([1, 2, 1, 3, 1, 2], ways=2) == [4, 4, 0, 4, 0, 4]


def test_distinct_lines_always_miss_and_a_hot_one_hits():
    assert of_one_set(range(100), ways=16) == [4] * 100
    assert of_one_set([7] * 100, ways=1) == [4] + [0] * 99


def test_a_miss_fetches_only_the_sectors_that_are_wanted():
    line, sectors = np.zeros(4, dtype=np.int64), np.asarray([0b0011, 0b0110, 0b0111, ALL], dtype=np.uint8)
    assert missing_sectors(np.zeros(4, dtype=np.int64), line, sectors).tolist() == [2, 1, 0, 1]


def test_no_accesses_miss_nothing():
    none = np.zeros(0, dtype=np.int64)
    assert missing_sectors(none, none, none.astype(np.uint8)).tolist() == []
