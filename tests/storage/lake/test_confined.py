"""A query reads the lake and nothing else: a list of attacks, and what must go on working."""

import resource
from pathlib import Path

import duckdb
import fsspec
import pytest

from dreamshard.costs import CostSample
from storage.lake import catalog, confined
from storage.lake.lake import Lake
from storage.settings import Settings
from storage.store import open_store
from tests.helpers.lake import append_samples

ATTACKS = [
    "copy (select 1) to '{outside}'",
    "copy (select 1) to '{lake}/planted.csv'",
    "copy (pivot (select 1 as a) on a) to '{lake}/planted.csv'",
    "explain analyze copy (select 1) to '{lake}/planted.csv'",
    "explain (analyze, format json) copy (select 1) to '{lake}/planted.csv'",
    "/* a */ explain analyze copy (select 1) to '{lake}/planted.csv'",
    "explain /* a */ analyze copy (select 1) to '{lake}/planted.csv'",
    "select 1; copy (select 1) to '{lake}/planted.csv'",
    "prepare planted as copy (select 1) to '{lake}/planted.csv'",
    "export database '{lake}/planted'",
    "import database '{lake}'",
    "attach '{lake}/planted.db'",
    "attach '{secret}' as stolen (type sqlite)",
    "install httpfs",
    "load '{secret}'",
    "set enable_external_access = true",
    "set memory_limit = '100GB'",
    "reset memory_limit",
    "pragma enable_logging",
    "call enable_logging(storage = 'file', storage_path = '{lake}/planted')",
    "from enable_logging(storage = 'file', storage_path = '{lake}/planted')",
    "create table planted as select 1",
    "create persistent secret planted (type s3)",
    "delete from versions",
    "from '{secret}'",
    "from read_text('{secret}')",
    "from read_text('{lake}/../{secret_name}')",
    "from read_blob('{secret}')",
    "from read_csv('{secret}')",
    "from read_csv_auto('{lake}/../{secret_name}')",
    "from sniff_csv('{secret}')",
    "from glob('{folder}/*')",
    "from query('copy (select 1) to ''{lake}/planted.csv''')",
    "from query('from read_text(''{secret}'')')",
    "from read_parquet('https://example.invalid/a.parquet')",
    "from read_parquet('s3://somebody/a.parquet')",
    "select getenv('HOME')",
    "from settings",
]
"""The last names a variable of the test, which DuckDB for Python would read if it were a data frame."""


@pytest.fixture
def secret(settings: Settings) -> Path:
    file = settings.lake_root.parent / "login"
    assert isinstance(file, Path)
    file.write_text("team:hunter2")
    return file


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_query_reads_no_file_but_the_lakes_and_writes_none(
    settings: Settings, lake: Lake, sample: CostSample, version: str, secret: Path, tmp_path: Path, attack: str
):
    append_samples(lake, [sample], "run", 1, version)
    names = {"lake": lake.root, "secret": secret, "secret_name": secret.name, "folder": secret.parent}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ValueError, match=r"DuckDB cannot answer|not a query that only reads|is 2 statements"
    ) as refused:
        catalog.query(settings, attack.format(outside=tmp_path / "planted", **names))
    assert "hunter2" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "sql",
    [
        "select overall_ms from cost_samples",
        "with a as (from cost_samples) from a",
        "describe cost_samples",
        "summarize cost_samples",
        "show tables",
        "explain analyze select * from cost_samples",
        "explain (format json) from cost_samples",
        "pivot (select device, device_ms from device_costs) on device using sum(device_ms)",
        "from (values (1), (2)); -- a remark",
    ],
)
def test_what_reads_is_answered(settings: Settings, lake: Lake, sample: CostSample, version: str, sql: str):
    append_samples(lake, [sample], "run", 1, version)
    assert catalog.query(settings, sql)


def test_a_lake_elsewhere_is_read_and_nothing_beside_it(tmp_path: Path, sample: CostSample, version: str):
    beside = "memory://team/other.txt"
    with fsspec.open(beside, "w") as file:
        file.write("hunter2")
    variables = {"DREAMSHARD_HOME": str(tmp_path), "DREAMSHARD_STORE": "memory://team/it's the lake"}
    settings = Settings.from_environment(variables)
    append_samples(open_store(settings).lake, [sample], "run", 1, version)
    assert catalog.query(settings, "select count(*) as n from cost_samples") == [{"n": 1}]
    for path in (beside, "memory:///team/other.txt"):
        with pytest.raises(ValueError, match="Permission Error"):
            catalog.query(settings, f"from read_text('{path}')")


def test_a_query_stops_at_its_memory_and_at_its_disk(settings: Settings):
    huge = "select count(*) from (select range as a, random() as b from range(100000000) order by b)"
    with (
        pytest.raises(ValueError, match=r"needs more than the 0\.03 GiB of memory.*raise --memory-gb"),
        catalog.answering(settings, huge, memory_gb=0.03) as answer,
    ):
        answer.rows.fetchall()


def test_one_huge_value_is_refused_and_the_process_goes_on():
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    with duckdb.connect() as connection, confined.bounded_process(0.1):
        with pytest.raises((duckdb.Error, MemoryError)):
            connection.sql("select length(repeat('a', 3000000000)), random()").fetchall()
        assert connection.sql("select 1").fetchall() == [(1,)]
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits
