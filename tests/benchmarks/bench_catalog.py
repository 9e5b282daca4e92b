"""Queries over 10 million per-device cost rows, through the catalog's views.

The rows are measurements as the lake stores them: two testbeds, five dataset versions, 856 tables, four devices of one
table each, so that `single_table` gives the cost of a table alone. Each time is the best of five, because other load on
the machine only adds time.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from storage.lake import catalog
from storage.lake.parquet_files import hive_folder, write_parquet
from storage.lake.schemas import datasets
from storage.settings import Settings
from storage.store import open_store

TESTBEDS, VERSIONS, NUM_TABLES, DEVICES = 2, 5, 856, 4
SMALL_FILES = 1000

QUERIES: dict[str, tuple[str, float | None]] = {
    "count": ("select count(*) from device_costs", None),
    "mean, pruned to one testbed and version": (
        "select avg(device_ms) from device_costs where testbed = 'simulated:1' and dataset_version = 'v3'",
        50.0,
    ),
    "mean and p95 by table over all": (
        "select single_table, avg(device_ms), quantile_cont(device_ms, 0.95) from device_costs group by 1",
        500.0,
    ),
    "mean of the shards that hold a table, by table": (
        "select name, avg(device_ms) from (select unnest(shard_tables) as name, device_ms from device_costs) "
        "group by 1",
        None,
    ),
    "mean cost of a sample by hardware": ("select hardware, avg(overall_ms) from cost_samples group by 1", None),
}
"""Name -> query over the views, and its bar in milliseconds (design section 8)."""

_ROWS = f"""
    select
        printf('%s-%d', '{{part}}', i // {DEVICES}) as sample_id, 'run' as run_key, 1 as iteration,
        '{{version}}' as dataset_version, '{{testbed}}' as testbed, 'simulated' as hardware, 'train-000' as task,
        i % {DEVICES} as device,
        10 * random() as forward_compute_ms, random() as forward_comm_ms,
        random() as backward_comm_ms, 10 * random() as backward_compute_ms, 22 * random() as device_ms,
        hash(i) % 1000000 as memory_bytes, 1 as num_tables, 64 as sum_dim,
        printf('t%d', hash(i) % {NUM_TABLES}) as single_table, [printf('t%d', hash(i) % {NUM_TABLES})] as shard_tables,
        'model' as clock, 65536 as batch_size, 'fp32' as precision, 'sgd' as optimizer,
        {DEVICES} as num_devices, null::bigint as devices_per_host, 2**34 as capacity_bytes,
        20 * random() as overall_ms, 0 as spread_ms, 15 as repeats,
        case when i % {DEVICES} = 0 then [printf('t%d', j) for j in range({DEVICES})] end as table_names,
        case when i % {DEVICES} = 0 then range({DEVICES}) end as placement,
        null::int as infeasible_device, null::bigint as asked_bytes, null::bigint as free_bytes,
        '{{{{}}}}' as versions, timestamp '2026-01-01' as created_at
    from range({{rows}}) as numbers(i)
"""


CORES = 2
"""The number of rows that the bars refer to."""


def rows(num_rows: int = 10_000_000) -> list[dict[str, Any]]:
    """Milliseconds per query; `ratio` above 1 beats the bar."""
    with tempfile.TemporaryDirectory() as home:
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": home})).settings
        folder = settings.lake_root / "cost_samples"
        _write_rows(folder, num_rows)
        size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
        found = [_row(f"{name}, {num_rows:,} rows", settings, sql, bar) for name, (sql, bar) in QUERIES.items()]
        found.append(
            {"name": "bytes per row on disk", "value": size / num_rows, "unit": "B", "bar": None, "ratio": None}
        )
    with tempfile.TemporaryDirectory() as home:
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": home})).settings
        one = _measurements("simulated:0", "v0", DEVICES)
        folder = hive_folder(settings.lake_root / "cost_samples", testbed="simulated:0", dataset_version="v0")
        for i in range(SMALL_FILES):
            write_parquet(folder / f"run.{i}.parquet", one)
        sql = "select avg(overall_ms) from cost_samples"
        found.append(_row(f"mean cost of the samples of {SMALL_FILES} files", settings, sql, None))
    return found


def _write_rows(folder: Path, num_rows: int) -> None:
    for testbed in range(TESTBEDS):
        for version in range(VERSIONS):
            made = _measurements(f"simulated:{testbed}", f"v{version}", num_rows // (TESTBEDS * VERSIONS))
            place = hive_folder(folder, testbed=f"simulated:{testbed}", dataset_version=f"v{version}")
            write_parquet(place / "run.parquet", made)


def _measurements(testbed: str, version: str, num_rows: int) -> pa.Table:
    sql = _ROWS.format(part=f"{testbed}-{version}", testbed=testbed, version=version, rows=num_rows)
    with duckdb.connect() as connection:
        made: pa.Table = connection.sql(sql).to_arrow_table()
    schema = datasets()["cost_samples"]
    return made.select(schema.names).cast(schema)


def _row(name: str, settings: Settings, sql: str, bar: float | None) -> dict[str, Any]:
    taken, cpu = [], []
    with catalog.connect(settings) as connection:
        connection.execute(sql).fetchall()  # warm-up, not timed
        for _ in range(5):
            start, cpu_start = time.perf_counter(), time.process_time()
            connection.execute(sql).fetchall()
            taken.append(1000 * (time.perf_counter() - start))
            cpu.append(1000 * (time.process_time() - cpu_start))
    value = min(taken)
    name = f"{name} (CPU {min(cpu):.0f} ms, {min(cpu) / CORES:.0f} ms on {CORES} idle cores)"
    return {"name": name, "value": value, "unit": "ms", "bar": bar, "ratio": None if bar is None else bar / value}
