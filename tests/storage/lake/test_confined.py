"""A query reads the lake and nothing else: a list of attacks, and what must go on working."""

import resource
from contextlib import suppress
from pathlib import Path

import duckdb
import fsspec
import pytest

from dreamshard.costs import CostSample
from storage.lake import catalog, confined
from storage.lake.lake import Lake
from storage.lake.lake_files import LAKE, LakeFiles
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
    "with a as (copy (select 1) to '{lake}/planted.csv') from a",
    "with a as (copy (select 1) to '{kept}') from a",
    "with a as (copy (select 1 as x, 2 as y) to '{lake}/tables' (format parquet, partition_by (x), overwrite true)) from a",
    "with a as (copy (select 1 as x, 2 as y) to '{lake}/tables' (format parquet, partition_by (x), append true)) from a",
    "with a as materialized (copy (select 1) to '{kept}' (use_tmp_file true)) select 1",
    "with recursive a as (copy (select 1) to '{kept}') from a",
    "(with a as (copy (select 1) to '{kept}') from a)",
    "from (with a as (copy (select 1) to '{kept}') from a)",
    "with b as (with a as (copy (select 1) to '{kept}') from a) from b",
    "select (with a as (copy (select 1) to '{kept}') select count(*) from a)",
    "select 1 union all (with a as (copy (select 1) to '{kept}') from a)",
    "/* a */ with a as (/* b */ cOpY (select 1) to '{kept}') -- c\n from a",
    "explain with a as (copy (select 1) to '{kept}') from a",
    "explain analyze with a as (copy (select 1) to '{kept}') from a",
    "explain (analyze, format json) with a as (copy (select 1) to '{kept}') from a",
    "describe with a as (copy (select 1) to '{kept}') from a",
    "summarize with a as (copy (select 1) to '{kept}') from a",
    "with a as (copy (select 1) to '{kept}') pivot a on Count",
    "with a as (copy (select 1) to '{kept}') from (pivot a on Count)",
    "with a as (pivot (select 1 as x) on x), b as (copy (from a) to '{kept}') from b",
    "explain analyze with a as (copy (select 1) to '{kept}') pivot a on Count",
    "with a as (copy (select 1) to '{own}planted.parquet') pivot a on Count",
    "with a as (copy (select 1) to '{own}{kept_name}') pivot a on Count",
    "with a as (copy (select 1) to '{own}../planted.parquet') pivot a on Count",
    "with a as (copy (select 1 as x, 2 as y) to '{own}cost_samples' (format parquet, partition_by (x), overwrite true)) "
    "pivot a on Count",
    "with a as (insert into versions values (1) returning *) from a",
    "with a as (update versions set version = 1 returning *) from a",
    "with a as (delete from versions returning *) from a",
    "with a as (merge into versions using tables on true when matched then delete returning *) from a",
    "from query('with a as (copy (select 1) to ''{kept_in_text}'') from a')",
    "from query_table('{secret}')",
    "from json_execute_serialized_sql(json_serialize_sql('with a as (copy (select 1) to ''{kept_in_text}'') from a'))",
    "pragma json_execute_serialized_sql('')",
    "execute planted",
    "create temp table planted as select 1",
    "create macro planted() as table (from read_text('{secret}'))",
    "from checkpoint()",
    "from truncate_duckdb_logs()",
    "from read_duckdb('{lake}/planted.db')",
    "from '{lake}/planted.duckdb'",
    "from read_parquet('{own}../{secret_name}')",
    "from glob('{own}../*')",
    "from glob('{own}/**')",
    "from glob('{own}{folder}/*')",
    "from read_parquet('{own}{secret}')",
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
    "from query('copy (select 1) to ''{lake_in_text}/planted.csv''')",
    "from query('from read_text(''{secret_in_text}'')')",
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


@pytest.fixture
def quoted(settings: Settings, lake: Lake, sample: CostSample, version: str, secret: Path, tmp_path: Path):
    """What the attacks name, as text within SQL; `..._in_text` is for text within text."""
    append_samples(lake, [sample], "run", 1, version)
    [kept] = lake.root.glob("cost_samples/**/*.parquet")
    names = {"lake": lake.root, "secret": secret, "secret_name": secret.name, "folder": secret.parent, "own": LAKE}
    names |= {"kept": kept, "kept_name": kept.relative_to(lake.root), "outside": tmp_path / "planted"}
    once = {name: str(value).replace("'", "''") for name, value in names.items()}
    return once | {f"{name}_in_text": value.replace("'", "''") for name, value in once.items()}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_query_reads_no_file_but_the_lakes_and_writes_none(
    settings: Settings, quoted: dict[str, str], tmp_path: Path, attack: str
):
    before = _contents(tmp_path)
    with pytest.raises(
        ValueError, match=r"DuckDB cannot answer|not a query that only reads|is 2 statements"
    ) as refused:
        catalog.query(settings, attack.format(**quoted))
    assert "hunter2" not in str(refused.value)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_lakes_files_stay_as_they_are_where_no_statement_is_refused(
    settings: Settings, quoted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
):
    monkeypatch.setattr(confined, "check", lambda _connection, _sql: None)
    before = _contents(tmp_path)
    answer: object = None
    with suppress(ValueError):
        answer = catalog.query(settings, attack.format(**quoted))
    assert "hunter2" not in str(answer)
    assert _contents(tmp_path) == before


WRITING = [attack for attack in ATTACKS if "with a as (copy" in attack]


@pytest.mark.parametrize("attack", WRITING)
def test_a_writing_cte_is_refused_before_it_runs(attack: str):
    with (
        duckdb.connect() as connection,
        pytest.raises(ValueError, match=r"only reads \((COPY|copy|MULTI|the function)"),
    ):
        confined.check(connection, attack.format(kept="x", lake="x", kept_in_text="x", own="x", kept_name="x"))


@pytest.mark.parametrize(
    ("pivot", "word"),
    [
        ("pivot (from query('select 1 as a')) on a using count(*)", "query"),
        ("pivot (from \"QUERY\" /* a */ ('select 1 as a')) on a using count(*)", "query"),
        (
            "pivot (from json_execute_serialized_sql(json_serialize_sql('select 1 as a'))) on a",
            "json_execute_serialized_sql",
        ),
        ("pivot (from duckdb_settings()) on name using first(value)", "duckdb_settings"),
        ("with p as (pivot a on x) insert into a select 1", "insert"),
        ("pivot (from read_text('/etc/passwd')) on content", "read_text"),
    ],
)
def test_words_of_a_pivot_that_may_do_more_than_read_are_refused(pivot: str, word: str):
    with duckdb.connect() as connection:
        connection.execute("create table a as select 1 as x")
        with pytest.raises(ValueError, match=rf"only reads \({word} may do more in a pivot"):
            confined.check(connection, pivot)


def test_a_pivot_over_the_lake_answers(settings: Settings, quoted: dict[str, str]):
    [row] = catalog.query(settings, "from (pivot device_costs on device using count(*) group by hardware)")
    assert sum(value for value in row.values() if isinstance(value, int)) > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda files, path: files.open(path, "wb"),
        lambda files, path: files.open(path, "r+b"),
        lambda files, path: files.open(path, "ab"),
        lambda files, path: files.rm(path),
        lambda files, path: files.rm(f"{LAKE}tables", recursive=True),
        lambda files, path: files.mv(path, f"{LAKE}planted"),
        lambda files, path: files.cp_file(path, f"{LAKE}planted"),
        lambda files, path: files.put(__file__, f"{LAKE}planted"),
        lambda files, _: files.mkdir(f"{LAKE}planted"),
        lambda files, path: files.makedirs(f"{LAKE}planted"),
        lambda files, path: files.touch(path),
        lambda files, path: files.pipe({path: b"x"}),
        lambda files, path: files.open(f"{LAKE}../login"),
        lambda files, path: files.open(f"{LAKE}/etc/passwd"),
        lambda files, path: files.glob(f"{LAKE}tables/../../*"),
    ],
)
def test_a_querys_file_system_reads_below_the_root_and_changes_nothing(lake: Lake, quoted: dict[str, str], change):
    before = _contents(lake.root.parent)
    with pytest.raises(PermissionError):
        change(LakeFiles(lake.root), f"{LAKE}{quoted['kept_name']}")
    assert _contents(lake.root.parent) == before


def test_a_query_nested_too_deeply_is_refused():
    with duckdb.connect() as connection, pytest.raises(ValueError, match="nested too deeply"):
        confined.check(connection, f"select {'(select ' * 400}1{')' * 400}")


@pytest.mark.parametrize("sql", ["select '\udcff'", "explain select '\udcff'", "describe \udcff"])
def test_half_a_character_is_refused_in_one_sentence(settings: Settings, sql: str):
    with pytest.raises(ValueError, match=r"is not text in UTF-8") as refused:
        catalog.query(settings, sql)
    str(refused.value).encode()


def _contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


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
        "with a as (from device_costs) select * from (pivot a on device using sum(device_ms))",
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) from n",
        "with a as (values (1)), b as (with c as (from a) from c) select (select count(*) from b) union all from a",
        "from range(3) as r(i), unnest([i]), generate_series(1, 2) where i in (from range(3))",
        "select column_name from information_schema.columns where table_name = 'versions'",
        "from duckdb_columns()",
        "select unnest(placement) from cost_samples",
        "from read_parquet('0://cost_samples/**/*.parquet')",
        "from glob('0://**/*.parquet')",
        "unpivot (select device, device_ms from device_costs) on device, device_ms",
        "from device_costs pivot (sum(device_ms) for device in (0, 1))",
        "show cost_samples",
        "show databases",
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
            catalog.query(settings, f"from read_parquet('{path}')")


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
