import glob
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from storage.filesystem import list_files, writing
from storage.lake import catalog
from storage.lake.parquet_files import HIVE_COLUMNS, datasets, hive_folder, read_parquet_files, write_parquet
from storage.settings import Settings
from tests.helpers.lake import append_samples, query
from tests.helpers.samples import make_evaluation, make_sample

WHERE = {"testbed": "cluster", "hardware": "x"}


def answers(settings: Settings, sql: str) -> list[tuple]:
    """The rows that answer a query."""
    return [tuple(row.values()) for row in query(settings, sql)]


@pytest.mark.parametrize("view", catalog.VIEWS)
def test_a_view_has_its_columns_before_the_first_file(settings, view, request, lake, task):
    described = f"select column_name, column_type from (describe from {view})"
    empty = answers(settings, described)
    assert answers(settings, f"from {view}") == []
    request.getfixturevalue("filled")
    if view == "evaluated_devices":
        append_samples(lake, [make_sample(task, [0, 0, 1])], "key", 0, request.getfixturevalue("version"))
    assert answers(settings, described) == empty
    assert len(answers(settings, f"from {view}")) > 0
    if view in ("versions", "tables", "tasks", "exchange_samples"):
        assert [name for name, _ in empty] == datasets()[view].names


def test_a_sample_is_one_row_and_each_of_its_devices_is_one(settings, filled):
    by_hardware = answers(settings, "select hardware, avg(overall_ms) as mean from cost_samples group by 1")
    assert by_hardware == [("simulated H100", 2.0)]
    rows = pd.read_parquet(settings.lake_root / "cost_samples").query("device == 0 and is_least and not is_reference")
    assert {*rows["sample_id"]} == {name for (name,) in answers(settings, "select sample_id from cost_samples")}, (
        "as said"
    )
    first, second = answers(
        settings,
        "select device, device_ms, num_tables, memory_bytes, sum_dim, single_table, shard_tables from device_costs "
        "where testbed = 'simulated:h100' order by device",
    )
    assert first == (0, pytest.approx(1.0), 1, 10 * (2 * 4 + 4), 4, "a", ["a"])
    assert second == (1, pytest.approx(2.0), 2, 30 * (2 * 16 + 4) + 40 * (2 * 32 + 4), 48, None, ["d", "e"])


def test_placements_name_devices_and_a_testbeds_query_opens_its_files(settings, filled):
    sql = "explain analyze select count(*) from device_costs where testbed = 'simulated:h100'"
    assert "1/2" in str(answers(settings, sql)), "only the files of one testbed are opened"
    rows = answers(settings, "select origin, testbed, placer, table_name, device from placements order by all")
    assert rows[:3] == [("cost_sample", "cluster", None, name, 0) for name in ("a", "d", "e")]
    assert rows[3:6] == [("cost_sample", "simulated:h100", None, n, d) for n, d in (("a", 0), ("d", 1), ("e", 1))]
    assert rows[6:] == [("evaluation", "cluster", "random", n, d) for n, d in (("a", 0), ("d", 0), ("e", 1))]


def test_the_catalog_is_replaced_under_an_open_reader(settings, request, lake, task, version):
    counted = "select count(*) from cost_samples"
    catalog.write_catalog(settings)
    with duckdb.connect(settings.catalog_path, read_only=True) as reader:
        request.getfixturevalue("filled")
        catalog.write_catalog(settings)
        assert reader.sql(counted).fetchall() == [(0,)]  # written while there was none
    with duckdb.connect(settings.catalog_path, read_only=True) as reader:
        assert reader.sql(counted).fetchall() == [(2,)]
        append_samples(lake, [make_sample(task, [1, 1, 1])], "run", 2, version)
        assert reader.sql(counted).fetchall() == [(3,)]
    assert [path.name for path in settings.home.glob("catalog*")] == ["catalog.duckdb"]


@pytest.mark.parametrize("damage", [lambda _: b"", lambda valid: valid[: len(valid) // 2]], ids=["empty", "truncated"])
@pytest.mark.parametrize("use", [lambda s: query(s, "from tables"), catalog.write_catalog], ids=["sql", "catalog"])
def test_a_damaged_file_of_the_lake_is_named_in_one_sentence(settings, filled, damage, use):
    [valid, *_] = list_files(settings.lake_root / "cost_samples", "**/*.parquet")
    with writing(valid.parent / "damaged.parquet") as file:
        file.write(damage(valid.read_bytes()))
    with pytest.raises(ValueError) as refused:
        use(settings)
    assert "\n" not in str(refused.value)


def keys(table: pa.Table) -> list[str]:
    """Rows as text, in any order, so that whatever a library returns can be compared."""
    return sorted(str(row) for row in table.to_pylist())


def assert_opens_everywhere(folder: Path) -> int:
    """Read a folder in one call of each library; returns the number of rows."""
    ours = read_parquet_files(sorted(folder.rglob("*.parquet")))
    expected = pa.concat_tables([table.select(ours[0].column_names) for table in ours])
    files = f"{glob.escape(str(folder))}/**/*.parquet"
    names = [name for name in expected.column_names if name not in HIVE_COLUMNS]  # libraries guess their types
    opened = {
        "pandas": pa.Table.from_pandas(pd.read_parquet(folder, dtype_backend="pyarrow"), preserve_index=False),
        "pyarrow": pyarrow.dataset.dataset(folder, partitioning="hive").to_table(),
        "polars": pl.read_parquet(files).to_arrow(),
        "DuckDB": duckdb.sql(f"from '{files.replace(chr(39), chr(39) * 2)}'").to_arrow_table(),
    }
    for library, table in opened.items():
        assert set(table.column_names) >= set(names), library
        assert keys(table.select(names)) == keys(expected.select(names)), library
    return len(expected)


def test_every_folder_opens_in_every_library(lake, task, sample, filled):
    version = "001234567890"  # looks like a number to a reader that guesses
    append_samples(lake, [sample], "run", 1, version)
    where = {"dataset_version": version, "testbed": "7", "hardware": "x"}
    lake.write_evaluation([make_evaluation(task, "random", 4.0)], {}, "k", **where)
    lake.write_tasks([task], version, "test", "12e5")
    left = lake.root / "evaluations" / "testbed=cluster" / ".killed.parquet.1.1.tmp"
    left.write_bytes(b"PAR")  # as by kill -9
    (lake.root / "tables" / "dataset_version=emptied").mkdir()
    rows = {folder.name: assert_opens_everywhere(folder) for folder in lake.root.iterdir()}
    assert min(rows.values()) > 0
    assert set(rows) >= {"tables", "tasks", "cost_samples", "evaluations", "exchange_samples"}


@pytest.mark.parametrize("value", ["a/b=c", "x=y", "~", "100 %"])
def test_a_folder_says_its_value_and_is_read_whatever_the_value(tmp_path, value):
    file = hive_folder(tmp_path, testbed=value) / "one.parquet"
    write_parquet(file, pa.table({"testbed": [value], "device": [1]}))
    assert pq.read_schema(file).names == ["device"]
    assert read_parquet_files([file])[0].to_pylist() == [{"device": 1, "testbed": value}]
    assert pd.read_parquet(tmp_path)["testbed"].tolist() == [value]
