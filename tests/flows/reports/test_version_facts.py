import pytest

from dreamshard.workloads.dataset_diff import diff_datasets
from flows.reports.version_facts import diff_label, version_name
from storage.run_records.lineage import Origin, Warm
from tests.helpers.tables import tables_of


def origin(source: str, warm_from: str = "") -> Origin:
    warm = None
    if warm_from:
        warm = Warm(version=warm_from, training="t", iteration=1, trainings=(), measurement_s=None, full_measurements=1)
    return Origin(recipe="smoke", source=source, dataset="d", tasks="t", setting={}, warm=warm)


@pytest.mark.parametrize(
    ("version", "made_of", "diff", "name"),
    [
        (4, origin("/data/tables.csv", "models:/m/3"), "+3 -2", "v4 tables.csv +3 -2, warm from v3"),
        (1, origin("meta-dlrm-2021"), "", "v1 meta-dlrm-2021, from nothing"),
        (2, origin("s3://team/tables/"), "unchanged", "v2 tables unchanged, from nothing"),
    ],
)
def test_a_version_is_named_for_what_it_is(version, made_of, diff, name):
    assert version_name(f"models:/m/{version}", made_of, diff) == name


def test_the_difference_counts_tables_added_removed_and_changed():
    before = tables_of([100, 200, 300], names=["a", "b", "c"])
    after = tables_of([100, 250, 400, 500], names=["a", "b", "d", "e"])
    assert diff_label(diff_datasets(before, after)) == "+2 -1 ~1"
    assert diff_label(diff_datasets(before, before)) == "unchanged"
    assert diff_label(diff_datasets(None, after)) == ""
