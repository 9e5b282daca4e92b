"""Files of measured shards that others wrote: what each shard must have."""

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dreamshard.shard_profiling.dataset import SCHEMA, MeasuredShard, parquet_bytes, read_shards
from tests.helpers.tables import tables_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    shards = [
        MeasuredShard(
            design="d", index=i, alone_of=None, tables=tables_of([100]), batch_size=64, precision="fp32", optimizer="sgd",
            forward_ms=1.0, backward_ms=2.0, clock="cpu", hardware="h100", versions={}, measured_at=datetime(2026, 1, 1)
        )
        for i in range(2)
    ]  # fmt: skip
    path = tmp_path / "shards.parquet"
    path.write_bytes(parquet_bytes(shards))
    return path


@pytest.mark.parametrize("name", ["index", "design", "batch_size", "rows", "measured_at", "spread_ms"])
def test_a_shard_that_lacks_what_every_shard_has_is_refused(file: Path, name: str):
    rows = pq.read_table(file)
    kind = SCHEMA.field(name).type
    first = rows[name].to_pylist()[0]
    pq.write_table(rows.set_column(rows.column_names.index(name), name, pa.array([first, None], kind)), file)
    with pytest.raises(ValueError, match=rf"shards\.parquet.*a shard lacks its {name}"):
        read_shards(file)


def test_a_shard_that_did_not_fit_has_no_cost_and_is_read(file: Path):
    rows = pq.read_table(file)
    for name in ("forward_ms", "backward_ms"):
        rows = rows.set_column(rows.column_names.index(name), name, pa.nulls(2, pa.float64()))
    pq.write_table(rows, file)
    assert [shard.forward_ms for shard in read_shards(file)] == [None, None]


def test_a_shard_with_unlike_numbers_of_names_and_rows_is_refused(file: Path):
    rows = pq.read_table(file)
    kind = SCHEMA.field("table_names").type
    pq.write_table(
        rows.set_column(rows.column_names.index("table_names"), "table_names", pa.array([["a", "b"]] * 2, kind)), file
    )
    with pytest.raises(ValueError, match="a shard has different numbers of table_names, rows"):
        read_shards(file)
