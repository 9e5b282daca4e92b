import os

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dreamshard.tables import ModelTable, concatenate
from dreamshard.workloads import LookupFiles, Lookups, dataset_version, statistics
from dreamshard.workloads.lookups import bin_counts, check_indices, read_lookups, write_lookups
from dreamshard.workloads.workload import ALPHA, draw_ranks, expected_counts, scatter

THREE_SAMPLES = Lookups(torch.tensor([5, 2, 2, 7], dtype=torch.int32), torch.tensor([0, 2, 2, 4]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lookups_come_back_from_parquet_as_they_were_written(tmp_path, dtype):
    write_lookups(tmp_path / "t.parquet", Lookups(THREE_SAMPLES.indices.to(dtype), THREE_SAMPLES.offsets))
    read = read_lookups(tmp_path / "t.parquet")
    assert read.indices.dtype == dtype
    assert read.indices.tolist() == [5, 2, 2, 7]
    assert read.offsets.tolist() == [0, 2, 2, 4]
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {"indices": [[5, 2], [], [2, 7]]}


@pytest.mark.parametrize(
    "column", [pa.array([[0.5]]), pa.array([[1, None]], pa.list_(pa.int32())), pa.array([[-1]], pa.list_(pa.int32()))]
)
def test_a_parquet_file_of_something_else_is_refused(tmp_path, column):
    pq.write_table(pa.table({"indices": column}), tmp_path / "t.parquet")
    with pytest.raises(ValueError):
        check_indices(read_lookups(tmp_path / "t.parquet").indices, 9, "t")


def test_old_copies_of_remote_lookups_are_removed(tmp_path):
    store = fsspec.filesystem("memory")
    for name in "abc":
        write_lookups(tmp_path / name, THREE_SAMPLES)
        store.pipe(f"/lookups/{name}", (tmp_path / name).read_bytes())
    copies = tmp_path / "copies"
    files = LookupFiles({name: f"memory://lookups/{name}" for name in "abc"}, copies=copies)
    for name in "ab":
        assert files(name).offsets.tolist() == THREE_SAMPLES.offsets.tolist()
    for name in "ab":
        os.utime(copies / name, (0, 0))
    files("c")
    assert {copy.name for copy in copies.iterdir()} == {"c"}
    assert files("b").offsets.tolist() == THREE_SAMPLES.offsets.tolist()


def table(indices, offsets, rows=100, name="t", dim=4):
    return ModelTable(name, rows, dim), Lookups(torch.tensor(indices, dtype=torch.int32), torch.tensor(offsets))


def test_bins_are_shares_of_distinct_rows_by_lookups():
    # row 9 once, row 3 twice, row 5 three times, row 0 five times
    counted = statistics(*table([9, 3, 3, 5, 5, 5, 0, 0, 0, 0, 0], [0, 6, 6, 11, 11]))
    assert counted.bins[0, :5].tolist() == [0.25, 0.25, 0.25, 0.25, 0]
    assert float(counted.bins.sum()) == 1
    assert (int(counted.lookups), int(counted.unique_rows), int(counted.rows)) == (11, 4, 100)
    assert float(counted.pooling_factor) == 11 / 4
    assert counted.pooling_factor.dtype == torch.float64


@pytest.mark.parametrize(
    ("count", "bin_index"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32768, 15), (32769, 16), (10**7, 16)]
)
def test_a_count_falls_into_the_first_bin_that_reaches_it(count, bin_index):
    assert bin_counts(np.asarray([count])).argmax() == bin_index


def test_a_dataset_version_is_of_every_column_but_not_of_order():
    first, second = statistics(*table([1], [0, 1], name="a")), statistics(*table([2, 2], [0, 2], name="b"))
    version = dataset_version(concatenate([first, second]))
    assert version == dataset_version(concatenate([second, first]))
    others = [table([1], [0, 1], **other) for other in ({}, {"name": "other"}, {"dim": 8}, {"rows": 101})]
    others += [table([1, 1], [0, 2]), table([1], [0, 1, 1])]
    assert len({dataset_version(statistics(*other)) for other in others}) == 6


def test_a_table_without_lookups_is_the_same_among_others():
    unused = statistics(*table([], [0, 0, 0, 0, 0], 10, "unused"))
    used = statistics(*table([0, 0, 0, 0], [0, 1, 2, 3, 4], 10, "used"))
    both = concatenate([unused, used])
    assert dataset_version(both.select([0])) == dataset_version(unused), "or its lookups file has another name"


def test_scattering_gives_every_row_once_even_of_a_huge_table():
    assert sorted(scatter(np.arange(12), 12, np.random.default_rng(0)).tolist()) == list(range(12))
    rows = 5 * 10**10
    scattered = scatter(np.asarray([0, 1, rows - 2, rows - 1]), rows, np.random.default_rng(0))
    assert len(set(scattered.tolist())) == 4
    assert 0 <= scattered.min() <= scattered.max() < rows


def test_ranks_are_drawn_in_proportion_to_the_power_laws_area():
    ranks = draw_ranks(2, 100_000, np.random.default_rng(0))
    # areas under x ** -1.05: from 1 to 2 and from 1 to 3
    assert (ranks == 0).mean() == pytest.approx((1 - 2**-0.05) / (1 - 3**-0.05), abs=0.005)


@pytest.mark.parametrize(("rows", "lookups"), [(1, 99), (150, 65_536), (5_000, 65_536), (50_000, 200_000)])
def test_expected_counts_are_the_poisson_shares_of_every_rank(rows, lookups):
    powers = np.arange(1, rows + 2) ** (1 - ALPHA)
    mean = torch.from_numpy(lookups * np.diff(powers) / (powers[-1] - powers[0]))  # [rows] lookups of each
    bounds = torch.tensor([0.0, *(2.0**j for j in range(16))], dtype=torch.float64)[:, None]
    exact = torch.special.gammaincc(bounds + 1, mean).diff(dim=0, append=torch.ones(1, rows).double()).sum(dim=1)
    assert expected_counts(rows, lookups) == pytest.approx(exact.tolist(), abs=1e-4 * float(exact.sum()))
    drawn = bin_counts(np.unique(draw_ranks(rows, lookups, np.random.default_rng(0)), return_counts=True)[1])
    assert exact.numpy() == pytest.approx(drawn, rel=0.06, abs=12)
