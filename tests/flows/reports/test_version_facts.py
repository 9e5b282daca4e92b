import pytest

from dreamshard.workloads.dataset_diff import diff_datasets
from flows.reports.version_facts import diff_label, version_name
from tests.helpers.tables import tables_of


@pytest.mark.parametrize(
    ("version", "tags", "name"),
    [
        (
            "4",
            {"source": "/data/tables.csv", "table_diff": "+3 -2", "warm_from": "3"},
            "v4 tables.csv +3 -2, warm from v3",
        ),
        (
            "1",
            {"source": "meta-dlrm-2021", "table_diff": "", "warm_from": ""},
            "v1 meta-dlrm-2021, from nothing",
        ),
        (
            "2",
            {"source": "s3://team/tables/", "table_diff": "unchanged", "warm_from": ""},
            "v2 tables unchanged, from nothing",
        ),
        (
            "paper:2",
            {"source": "tables.csv", "table_diff": "", "warm_from": "paper:1"},
            "paper v2 tables.csv, warm from v1",
        ),
    ],
)
def test_a_version_is_named_for_what_it_is(version, tags, name):
    assert version_name(version, tags) == name


def test_the_difference_counts_tables_added_removed_and_changed():
    before = tables_of([100, 200, 300], names=["a", "b", "c"])
    after = tables_of([100, 250, 400, 500], names=["a", "b", "d", "e"])
    assert diff_label(diff_datasets(before, after)) == "+2 -1 ~1"
    assert diff_label(diff_datasets(before, before)) == "unchanged"
    assert diff_label(diff_datasets(None, after)) == ""
