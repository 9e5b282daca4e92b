from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from dreamshard.costs import CostSample
from dreamshard.tasks import PlacementTask
from storage.lake.lake import Lake
from storage.lake.parquet_files import HIVE_COLUMNS, hive_folder, read_parquet_files, write_parquet
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_evaluation


def keys(table: pa.Table) -> list[str]:
    """Rows as text, in any order, so that whatever a library returns can be compared."""
    return sorted(str(row) for row in table.to_pylist())


def assert_opens_everywhere(folder: Path) -> int:
    """Read a folder in one call of each library; returns the number of rows."""
    ours = read_parquet_files(sorted(folder.rglob("*.parquet")))
    expected = pa.concat_tables([table.select(ours[0].column_names) for table in ours])
    names = [name for name in expected.column_names if name not in HIVE_COLUMNS]  # libraries guess their types
    found = {
        "pandas": pa.Table.from_pandas(pd.read_parquet(folder, dtype_backend="pyarrow"), preserve_index=False),
        "pyarrow": pyarrow.dataset.dataset(folder, partitioning="hive").to_table(),
        "polars": pl.read_parquet(folder / "**" / "*.parquet").to_arrow(),
        "DuckDB": duckdb.sql(f"from '{str(folder).replace(chr(39), chr(39) * 2)}/**/*.parquet'").to_arrow_table(),
    }
    for library, table in found.items():
        assert set(table.column_names) >= set(names), library
        assert keys(table.select(names)) == keys(expected.select(names)), library
    return len(expected)


def test_every_folder_of_the_lake_opens_in_every_library(
    lake: Lake,
    task: PlacementTask,
    sample: CostSample,
    filled: None,
):
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
def test_a_folder_says_its_value_and_is_read_whatever_the_value(tmp_path: Path, value: str):
    file = hive_folder(tmp_path, testbed=value) / "one.parquet"
    write_parquet(file, pa.table({"testbed": [value], "device": [1]}))
    assert pq.read_schema(file).names == ["device"]
    assert read_parquet_files([file])[0].to_pylist() == [{"device": 1, "testbed": value}]
    assert pd.read_parquet(tmp_path)["testbed"].tolist() == [value]
