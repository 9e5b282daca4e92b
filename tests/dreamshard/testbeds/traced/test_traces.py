"""What kernels do for a table, on lookups that can be counted by hand, and which of it is sampled."""

import numpy as np
import pytest
import torch

from dreamshard.testbeds.traced.accesses import SetSampler
from dreamshard.testbeds.traced.backward import PER_WARP, backward
from dreamshard.testbeds.traced.forward import RowLayout, forward
from dreamshard.testbeds.traced.replay import missed_sectors
from dreamshard.testbeds.traced.sorted_lookups import SortedLookups
from dreamshard.testbeds.traced.tables import trace
from dreamshard.workloads.lookups import Lookups

EVERY_SET = SetSampler(num_sets=64, log2_k=0, seed=0)
WARPS = 64


def bags(*rows: list[int]) -> Lookups:
    """One bag of rows per sample."""
    lengths = torch.tensor([0, *map(len, rows)])
    return Lookups(torch.tensor([row for bag in rows for row in bag], dtype=torch.int32), lengths.cumsum(0))


def layout(dim: int, row_bytes: int | None = None) -> RowLayout:
    return RowLayout("table", dim, 4 * dim if row_bytes is None else row_bytes)


def drawn(batch_size: int, per_bag: int, rows: int, seed: int = 0, skew: float = 3.0) -> Lookups:
    generator = np.random.default_rng(seed)
    indices = (rows * generator.random(batch_size * per_bag) ** skew).astype(np.int32)
    return Lookups(torch.from_numpy(indices), torch.arange(batch_size + 1) * per_bag)


def test_lookups_are_sorted_by_row_and_keep_their_samples():
    found = SortedLookups.of(bags([5, 2], [], [2, 9, 2]))
    assert found.row.tolist() == [2, 5, 9]
    assert found.counts.tolist() == [3, 1, 1]
    assert found.bag.tolist() == [0, 2, 2, 0, 2]
    assert found.segment_of(np.asarray([0, 2, 3, 4])).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("row_bytes", "sectors"),
    [(128, [4, 4, 4]), (16, [1, 0, 1]), (48, [2, 1, 2])],  # rows 0, 1, 5: 16 bytes share a sector, 48 overlap
)
def test_neighbouring_rows_share_sectors(row_bytes, sectors):
    assert SortedLookups.of(bags([0, 1, 5])).row_sectors(row_bytes).tolist() == sectors


@pytest.mark.parametrize("dim", [4, 12, 32, 40, 160])
def test_every_sector_is_fetched_once_if_all_is_kept_and_exactly_as_many_as_are_distinct(dim):
    found = trace(drawn(200, 6, 300), layout(dim), 300, "rowwise_adagrad", EVERY_SET, WARPS)
    fresh = [int(accesses.fresh.sum()) for accesses in found.accesses]
    of_outputs_and_indices = 200 * (layout(dim).vector_bytes // 32 - (layout(dim).vector_bytes - 4 * dim) // 32)
    of_outputs_and_indices += 4 * -(-200 * 6 * 8 // 128)
    assert fresh[0] == found.work[0].distinct + of_outputs_and_indices
    assert fresh[1:] == [work.distinct for work in found.work[1:]]


def test_a_warp_reads_the_rows_of_its_bag_before_it_writes_their_sum():
    accesses, work = forward(SortedLookups.of(bags(*[[3] * 20] * 2)), layout(32), EVERY_SET, WARPS)
    assert (work.warps, work.longest) == (2, 1 + 2)  # 16 rows at once: four groups of 8 lanes, 4 rows each
    row, output = accesses.line < 1 << 40, (accesses.line >> 40) == 1
    assert (row.sum(), output.sum()) == (40, 2)
    assert accesses.time[row].max() < accesses.time[output].max()
    assert (np.diff(accesses.time) >= 0).all()


def test_short_bags_share_a_warp():
    _, work = forward(SortedLookups.of(bags(*[[1, 2]] * 40)), layout(32), EVERY_SET, WARPS)
    assert (work.warps, work.longest) == (2, 1 + 32 * 2 // 4)


def test_lines_requested_follow_the_width_of_a_row():
    narrow, wide = (forward(SortedLookups.of(drawn(64, 10, 50)), layout(dim), EVERY_SET, WARPS)[1] for dim in (16, 64))
    rows = 64 * 10
    assert wide.lines - narrow.lines == rows * (2 - 1) + 64 * (
        2 - 0.5
    )  # rows of 2 lines; pooled vectors of half a line


def test_rows_looked_up_often_are_summed_by_many_warps_and_the_most_often_by_atomic_additions():
    hot, rare = [0] * 3000, list(range(1, 101))
    (_, long), (_, short) = backward(
        SortedLookups.of(bags(*[[row] for row in hot + rare])), layout(32), "sgd", EVERY_SET, WARPS
    )
    assert long.warps == -(-3000 // PER_WARP)
    assert (short.warps, short.longest) == (100, 2)
    assert long.longest == 32 // 4 + 1
    assert long.atomics == -(-3000 // 1024) * 4  # blocks of at most 1024 gradients, each with 4 sectors
    assert short.atomics == 0


def test_a_gradient_that_both_kernels_read_is_new_to_the_first_only():
    rows = [0] * 40
    (first, long), (second, short) = backward(
        SortedLookups.of(bags(*[[row, 1 + i] for i, row in enumerate(rows)])), layout(32), "sgd", EVERY_SET, WARPS
    )
    assert long.distinct == 40 * 4 + 4  # gradients, and the hot row
    assert short.distinct == 40 * 4  # the other rows
    assert (int(first.fresh.sum()), int(second.fresh.sum())) == (long.distinct, short.distinct)


def test_a_table_that_is_not_looked_up_only_writes_zeros():
    found = trace(bags(*[[]] * 50), layout(16), 10, "sgd", EVERY_SET, WARPS)
    assert found.work[0].written_bytes == 50 * 64
    assert found.work[0].distinct == found.work[1].warps == found.work[2].warps == 0
    assert missed_sectors([[found]], EVERY_SET, WARPS)[0][0].tolist() == [[0], [0], [0]]


def test_one_line_of_every_k_is_sampled_whatever_lies_in_it():
    sampler = SetSampler(num_sets=16, log2_k=3, seed=1)
    first_byte = np.arange(4000) * 48
    touched = sampler.touched("region", first_byte, 48)
    every = SetSampler(num_sets=128, log2_k=0, seed=1).touched("region", first_byte, 48)
    chosen = np.unique(touched.line)
    assert len(chosen) == pytest.approx(4000 * 48 / 128 / 8, abs=1)
    assert len(np.unique(chosen >> 3)) == len(chosen)
    in_chosen = np.isin(every.line, chosen)
    wanted = set(zip(every.block[in_chosen].tolist(), every.sectors[in_chosen].tolist(), strict=True))
    assert wanted == set(zip(touched.block.tolist(), touched.sectors.tolist(), strict=True))


def misses(sampler, tables):
    return missed_sectors([[trace(*table, sampler, WARPS) for table in tables]], sampler, WARPS)[0]


def thrashing_tables():
    """Two tables whose rows take several times the cache of 128 sets."""
    return [(drawn(1500, 12, 20_000, seed), layout(32), 20_000, "sgd") for seed in (0, 1)]


def test_sampled_sets_stand_for_all_the_more_the_better_and_their_spread_bounds_the_error():
    exact = misses(SetSampler(128, 0, 0), thrashing_tables())[0].sum()
    error, stated = {}, {}
    for log2_k in (1, 4):
        samplers = [SetSampler(128 >> log2_k, log2_k, seed) for seed in range(6)]
        found = np.stack([misses(sampler, thrashing_tables()).sum(axis=(1, 2)) for sampler in samplers])
        assert found[:, 0] == pytest.approx(found[:, 1:].mean(axis=1))
        error[log2_k] = float(np.sqrt(np.mean((found[:, 0] / exact - 1) ** 2)))
        stated[log2_k] = float((found[:, 1:].std(axis=1, ddof=1) / np.sqrt(8)).mean() / exact)
    assert error[1] < error[4] < 0.05
    assert stated[1] < stated[4] < 0.1
    assert all(error[log2_k] < 1.5 * stated[log2_k] for log2_k in error)


def test_a_cache_that_holds_everything_misses_each_sector_once():
    large = SetSampler(4096, 0, 0)
    tables = [(drawn(500, 12, 800), layout(32), 800, "sgd")]
    found = misses(large, tables)[0, :, 0]
    assert found.tolist() == [work.distinct for work in trace(*tables[0], large, WARPS).work]
