import numpy as np
import pytest
import torch

from dreamshard.tables import concatenate
from dreamshard.workloads import Lookups, WorkloadTable, dataset_version, statistics
from dreamshard.workloads.lookups import access_counts, bin_counts


def table(indices, offsets, rows=100, name="t", dim=4):
    return WorkloadTable(name, rows, dim, Lookups(torch.tensor(indices, dtype=torch.int32), torch.tensor(offsets)))


@pytest.mark.parametrize("rows", [10, 1_000_000])
def test_bins_are_shares_of_distinct_rows_by_how_often_they_are_looked_up(rows):
    # row 9 once, row 3 twice, row 5 three times, row 0 five times
    indices = [9, 3, 3, 5, 5, 5, 0, 0, 0, 0, 0]
    found = statistics(table(indices, [0, 6, 6, 11, 11], rows))
    assert found.bins[0, :5].tolist() == [0.25, 0.25, 0.25, 0.25, 0]
    assert float(found.bins.sum()) == 1
    assert (int(found.lookups), int(found.unique_rows), int(found.rows)) == (11, 4, rows)
    assert float(found.pooling_factor) == 11 / 4
    assert found.pooling_factor.dtype == torch.float64


@pytest.mark.parametrize(
    ("count", "bin_index"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32768, 15), (32769, 16), (10**7, 16)]
)
def test_a_count_falls_into_the_bin_whose_upper_bound_it_does_not_exceed(count, bin_index):
    assert bin_counts(np.asarray([count])).argmax() == bin_index


def test_counting_and_sorting_find_the_same_counts():
    indices = np.random.default_rng(0).integers(0, 50, 400).astype(np.int32)
    by_counting, by_sorting = access_counts(indices, 50), access_counts(indices, 10**6)
    assert by_counting.tolist() == by_sorting.tolist()
    assert by_sorting.sum() == 400


def test_the_dataset_version_does_not_depend_on_the_order_of_tables():
    first, second = statistics(table([1], [0, 1], name="a")), statistics(table([2, 2], [0, 2], name="b"))
    version = dataset_version(concatenate([first, second]))
    assert version == dataset_version(concatenate([second, first]))
    assert len(version) == 12


@pytest.mark.parametrize(
    "other",
    [
        table([1], [0, 1], name="other"),
        table([1], [0, 1], dim=8),
        table([1], [0, 1], rows=101),
        table([1, 1], [0, 2]),
        table([1], [0, 1, 1]),
    ],
    ids=["name", "dim", "rows", "lookups", "pooling"],
)
def test_the_dataset_version_changes_with_every_column(other):
    assert dataset_version(statistics(other)) != dataset_version(statistics(table([1], [0, 1])))
