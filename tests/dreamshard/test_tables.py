import pytest

from tests.helpers.tables import tables_of


def test_tables_and_column_shards_are_selected_in_order():
    tables = tables_of([10, 20], dim=[8, 16])
    assert tables.select([1, 0]).names == ("t1", "t0")
    shards = tables.named(["t1", "t0", "t1"], [[0, 4], [0, 8], [4, 16]])
    assert shards.labels == ["t1[0:4]", "t0", "t1[4:16]"]
    assert (shards.rows.tolist(), shards.dim.tolist()) == ([20, 10, 20], [4, 8, 12])
    assert tables.dim.tolist() == [8, 16], "the pool keeps its dims"


@pytest.mark.parametrize("wrong", [{"rows": [0]}, {"rows": [5], "dim": [6]}, {"rows": [5], "pooling": [-1.0]}])
def test_wrong_figures_are_refused(wrong):
    with pytest.raises(ValueError):
        tables_of(**wrong)
