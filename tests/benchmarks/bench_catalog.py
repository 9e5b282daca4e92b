"""Queries over 10 million per-device cost rows, through the catalog's views.

The rows are measurements as the lake stores them: two testbeds, five dataset versions, 856 tables, four devices of one
table each, so that `single_table` gives the cost of a table alone. Each time is the best of five, because other load on
the machine only adds time.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product

import duckdb
import pyarrow as pa

from storage.lake import catalog
from storage.lake.parquet_files import hive_folder, write_parquet
from storage.lake.schemas import datasets
from storage.settings import Settings
from storage.store import open_store
from tests.benchmarks.measuring import Row, row

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
"""The number of cores that the bars refer to."""


def rows(num_rows: int = 10_000_000) -> Iterator[Row]:
    """Milliseconds per query; then bytes per row on disk, and a query over many small files."""
    with tempfile.TemporaryDirectory() as home:
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": home})).settings
        for testbed, version in product(range(TESTBEDS), range(VERSIONS)):
            _write(settings, f"simulated:{testbed}", f"v{version}", num_rows // (TESTBEDS * VERSIONS), ["run"])
        for name, (sql, bar) in QUERIES.items():
            yield _timed(f"{name}, {num_rows:,} rows", settings, sql, bar)
        size = sum(file.stat().st_size for file in settings.lake_root.rglob("*.parquet"))
        yield row("bytes per row on disk", size / num_rows, "B")
    with tempfile.TemporaryDirectory() as home:
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": home})).settings
        _write(settings, "simulated:0", "v0", DEVICES, [f"run.{i}" for i in range(SMALL_FILES)])
        sql = "select avg(overall_ms) from cost_samples"
        yield _timed(f"mean cost of the samples of {SMALL_FILES} files", settings, sql, None)


def _write(settings: Settings, testbed: str, version: str, num_rows: int, names: Sequence[str]) -> None:
    """The same measurements in a file of each name."""
    sql = _ROWS.format(part=f"{testbed}-{version}", testbed=testbed, version=version, rows=num_rows)
    with duckdb.connect() as connection:
        made: pa.Table = connection.sql(sql).to_arrow_table()
    schema = datasets()["cost_samples"]
    kept = made.select(schema.names).cast(schema)
    folder = hive_folder(settings.lake_root / "cost_samples", testbed=testbed, dataset_version=version)
    for name in names:
        write_parquet(folder / f"{name}.parquet", kept)


def _timed(name: str, settings: Settings, sql: str, bar: float | None) -> Row:
    taken, cpu = [], []
    with catalog.connect(settings) as connection:
        connection.execute(sql).fetchall()  # warm-up, not timed
        for _ in range(5):
            start, cpu_start = time.perf_counter(), time.process_time()
            connection.execute(sql).fetchall()
            taken.append(1000 * (time.perf_counter() - start))
            cpu.append(1000 * (time.process_time() - cpu_start))
    return row(
        f"{name} (CPU {min(cpu):.0f} ms, {min(cpu) / CORES:.0f} ms on {CORES} idle cores)", min(taken), "ms", bar
    )
