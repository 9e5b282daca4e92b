import pytest

from dreamshard.tables import Tables
from flows.rules.dataset_diff import diff_datasets
from tests.helpers.tables import tables_of

ONCE = (1.0, 0.0)  # every distinct row is looked up once
HALF = (0.5, 0.5)  # half of them once, half of them twice


def tables(**columns: tuple[int, int, float, tuple[float, float]]) -> Tables:
    """`name=(rows, dim, pooling factor, the first two bins)`."""
    rows, dim, pooling, bins = zip(*columns.values(), strict=True)
    return tables_of(
        rows,
        dim,
        pooling,
        names=tuple(columns),
        bins=bins,
        lookups=[round(100 * factor) for factor in pooling],
        unique_rows=[min(size, 10) for size in rows],
    )


BEFORE = tables(a=(100, 4, 1.0, ONCE), b=(200, 8, 2.0, HALF), c=(300, 4, 1.0, ONCE))


def test_the_same_tables_in_another_order_are_no_change():
    diff = diff_datasets(BEFORE, BEFORE.select([2, 0, 1]))
    assert (diff.changes, diff.label, diff.matters) == ((), "unchanged", False)
    assert diff_datasets(None, BEFORE).matters, "nothing was trained on them"


def test_every_kind_of_change_is_found_under_the_tables_name():
    # a is gone, b twice as wide, c looked up twice as often, d new
    diff = diff_datasets(BEFORE, tables(b=(200, 16, 2.0, HALF), c=(300, 4, 2.0, ONCE), d=(50, 4, 1.0, ONCE)))
    kinds = {change.name: change.kind for change in diff.changes}
    assert kinds == {"a": "removed", "b": "resized", "c": "drifted", "d": "added"}
    assert (diff.label, diff.matters) == ("+1 -1 ~2", True)
    rows = {row["table"]: row for row in (change.row() for change in diff.changes)}
    assert rows["b"]["dim"] == "8 -> 16"
    assert rows["c"]["pooling factor"] == "1 -> 2"


def test_the_change_that_touches_most_of_the_dataset_comes_first():
    # Work before: 1x4 + 2x8 + 1x4 = 24; weights: 100x4 + 200x8 + 300x4 = 3200. b: 16 more of 24, 1600 more of 3200.
    # c without a third of its rows: 100x4 of 3200 = 1/8. a is gone: 4 of 24 = 1/6, 400 of 3200 = 1/8.
    after = tables(b=(200, 16, 2.0, HALF), c=(200, 4, 1.0, ONCE))
    changes = diff_datasets(BEFORE, after).changes
    assert [change.name for change in changes] == ["b", "a", "c"]
    assert [change.weight for change in changes] == pytest.approx([16 / 24, 4 / 24, 400 / 3200])


@pytest.mark.parametrize(("pooling", "drifted"), [(1.2, False), (1.25, True), (0.75, True), (0.8, False)])
def test_a_pooling_factor_drifts_from_its_relative_threshold_on(pooling, drifted):
    after = tables(a=(100, 4, pooling, ONCE), b=(200, 8, 2.0, HALF), c=(300, 4, 1.0, ONCE))
    assert diff_datasets(BEFORE, after, pooling=0.25).matters is drifted


@pytest.mark.parametrize(("threshold", "drifted"), [(0.2, True), (0.25, True), (0.3, False)])
def test_reuse_drifts_by_the_share_of_rows_that_change_their_bin(threshold, drifted):
    after = tables(a=(100, 4, 1.0, ONCE), b=(200, 8, 2.0, (0.25, 0.75)), c=(300, 4, 1.0, ONCE))
    diff = diff_datasets(BEFORE, after, reuse=threshold)
    assert diff.matters is drifted
    assert [change.reuse for change in diff.changes] == ([0.25] if drifted else [])
