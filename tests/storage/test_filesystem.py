"""The lake on addresses: the cases of the local lake again, in memory and on an S3 server, and what is only there."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from dreamshard.costs import CostSample
from dreamshard.tasks import PlacementTask
from storage import load
from storage.filesystem import list_file_infos, list_files
from storage.lake import catalog, confined, schemas
from storage.lake import rows as records
from storage.lake.lake import Lake
from storage.lake.lake_files import LAKE
from storage.lake.parquet_files import write_parquet
from storage.lake.sample_buffer import collecting, measurement_path
from storage.settings import Settings
from storage.store import open_store
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_sample

# the same cases, for the lake of this module's `settings`
from tests.storage.lake.test_catalog import (  # noqa: F401
    filled,
    test_a_damaged_file_of_the_lake_is_named_in_one_sentence,
    test_a_sample_is_one_row_and_each_of_its_devices_is_one,
    test_placements_name_the_device_of_every_table,
)
from tests.storage.lake.test_lake import (  # noqa: F401
    test_a_damaged_file_is_named,
    test_a_key_never_comes_to_mean_other_tasks,
    test_an_evaluation_made_again_takes_the_place_of_the_one_before,
    test_an_unknown_dataset_names_those_there_are,
    test_datasets_that_share_a_table_share_its_lookups,
    test_samples_are_found_by_run,
    test_samples_come_back_bit_for_bit_in_the_order_of_iterations,
    test_tables_come_back_bit_for_bit_in_their_order,
    test_tasks_come_back_as_they_were_drawn,
    test_the_dataset_written_last_is_named_last,
    test_the_same_samples_again_add_nothing_even_among_new_ones,
    test_writers_of_one_run_at_the_same_time_lose_nothing,
    test_writing_the_same_dataset_twice_adds_nothing,
)
from tests.storage.lake.test_sample_buffer import (  # noqa: F401
    test_samples_kept_one_by_one_are_one_file_of_the_lake,
    test_what_was_kept_before_an_error_is_in_the_lake,
)
from tests.storage.lake.test_shard_cost_cache import (  # noqa: F401
    test_shards_are_a_view,
)


@pytest.fixture(params=["memory", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home on this machine and a store of its own elsewhere."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3_environment").items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DREAMSHARD_STORE", f"{request.param}://team/{uuid4().hex}/o'neil & co")
    return open_store().settings


on_s3 = pytest.mark.parametrize("settings", ["s3"], indirect=True)


def test_nothing_of_the_lake_lies_in_the_home(lake: Lake, settings: Settings, sample: CostSample, version: str):
    append_samples(lake, [sample], "run", 1, version)
    assert [entry.path.name.partition(".")[2] for entry in list_file_infos(settings.store_root)][1:] == ["parquet"]
    assert not list(settings.home.rglob("*.parquet"))
    assert settings.artifact_root == f"{settings.store_root}/mlartifacts"


def test_a_sample_that_two_hosts_kept_in_two_files_counts_once(
    lake: Lake, settings: Settings, task: PlacementTask, version: str
):
    origin = {"run_key": "run", "iteration": 1, "dataset_version": version}
    first, both, second = (
        records.sample_to_rows(make_sample(task, [d, 0, 1], ms=d + 1.0), **origin) for d in (0, 1, 0)
    )
    second = records.sample_to_rows(make_sample(task, [0, 0, 0], ms=3.0), **origin)
    folder, start = measurement_path(lake.root / "cost_samples", first[0])
    for name, rows in (("a", first + both), ("b", both + second)):
        write_parquet(folder / f"{start}.{name}.parquet", pa.Table.from_pylist(rows, schema=schemas.MEASUREMENTS))
    assert sorted(one.placement.device.tolist() for one in lake.read_cost_samples("run")) == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 1],
    ]
    assert catalog.query(settings, "select count(*) as n from cost_samples") == [{"n": 3}]
    assert catalog.query(settings, "select count(*) as n from device_costs") == [{"n": 6}]
    assert catalog.query(settings, "select count(*) as n from placements") == [{"n": 9}]


def test_a_query_of_one_testbed_opens_only_its_files_elsewhere_too(settings: Settings, filled: None):  # noqa: F811
    plan = catalog.query(settings, "explain analyze select overall_ms from cost_samples where testbed = 'cluster'")
    assert "Scanning Files: 1/2" in plan[0]["explain_value"]


@pytest.mark.parametrize(
    "attack",
    [
        "with a as (copy (select 1) to '{kept}') from a",
        "with a as (copy (select 1) to '{kept}') pivot a on Count",
        "with a as (copy (select 1) to '{shouted}') pivot a on Count",
        "with a as (copy (select 1) to '{lake}{name}') pivot a on Count",
        "with a as (copy (select 1) to '{lake}planted.parquet') pivot a on Count",
        "with a as (copy (select 1 x, 2 y) to '{lake}tables' (partition_by (x), overwrite true)) pivot a on Count",
    ],
)
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_query_changes_nothing_in_a_store(
    settings: Settings,
    filled: None,  # noqa: F811
    attack: str,
    is_checked: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    root = settings.lake_root
    kept = list_files(root / "cost_samples", "**/*.parquet")[0]
    scheme, _, rest = str(kept).partition("://")
    names = {"kept": kept, "shouted": f"{scheme.upper()}://{rest}", "name": kept.path.removeprefix(root.path)[1:]}
    names |= {"lake": LAKE}
    quoted = {name: str(value).replace("'", "''") for name, value in names.items()}
    (tmp_path / f"{scheme.upper()}:").mkdir()
    monkeypatch.chdir(tmp_path)
    if not is_checked:
        monkeypatch.setattr(confined, "check", lambda _connection, _sql: None)
    before = {path: path.read_bytes() for path in list_files(root, "**/*")}
    with pytest.raises(ValueError, match=r"DuckDB cannot answer|not a query that only reads"):
        catalog.query(settings, attack.format(**quoted))
    assert {path: path.read_bytes() for path in list_files(root, "**/*")} == before
    assert not list((tmp_path / f"{scheme.upper()}:").iterdir())


@on_s3
def test_the_catalog_file_opens_in_another_process_that_can_read_the_store(settings: Settings, filled: None):  # noqa: F811
    catalog.write_catalog(settings)
    assert len(load.cost_samples(home=str(settings.store_root))) == 2
    reader = (
        "import sys, duckdb, fsspec; c = duckdb.connect(sys.argv[1], read_only=True); "
        "c.register_filesystem(fsspec.filesystem('s3')); print(c.sql('select count(*) from cost_samples').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", reader, str(settings.catalog_path)], capture_output=True, text=True)
    assert done.stdout == "[(2,)]\n", done.stderr


HOST = """
import pickle, sys
from tests.helpers.samples import make_sample, four_tables
from dreamshard.tasks import PlacementTask
from storage.lake.sample_buffer import collecting
from storage.store import open_store

job = pickle.load(sys.stdin.buffer)
print(job["lookups"]("a").indices.tolist(), flush=True)
sys.stdin.buffer.readline()
lake, task = open_store().lake, PlacementTask(four_tables(), 2, 10**6)
for iteration in range(1, 6):
    with collecting(lake, job["run"], iteration, job["version"]) as keep:
        for device in (0, 1):
            keep(make_sample(task, [device, 1, 0, 1], ms=iteration + device))
        keep(make_sample(task, [1, 1, 1, 1], ms=iteration + job["own"]))
if job["killed"]:
    with collecting(lake, "killed", 1, job["version"]) as keep:
        keep(make_sample(task, [0, 1, 0, 1]))
        print("kept", flush=True)
        sys.stdin.buffer.readline()
"""


@on_s3
def test_hosts_that_write_at_the_same_time_and_one_that_is_killed_corrupt_nothing(
    settings: Settings, lake: Lake, version: str, task: PlacementTask, tmp_path: Path
):
    """Two processes with homes, and so locks, of their own do the same run; what one measures differs in part."""
    from tests.storage.lake.test_lake import lookups_of

    table = lookups_of("a", [1, 1, 3])
    address = lake.write_table_lookups(table)
    hosts = []
    for own in (0, 1):
        hosts.append(_host(tmp_path / f"host{own}"))
        copies = tmp_path / f"host{own}" / "lookups"
        job = {"lookups": _files("a", str(address), copies), "version": version, "run": "same"}
        hosts[own].stdin.write(pickle.dumps(job | {"own": own / 2, "killed": own == 1}))
        hosts[own].stdin.flush()
    for host in hosts:
        assert host.stdout.readline() == b"[1, 1, 3]\n", "ranks of another process read the lookups from the store"
    for host in hosts:
        host.stdin.write(b"go\n")
        host.stdin.flush()
    assert hosts[0].wait() == 0
    assert hosts[1].stdout.readline() == b"kept\n"
    os.kill(hosts[1].pid, signal.SIGKILL)
    hosts[1].wait()
    _check_after_both(settings, lake, version)


def _check_after_both(settings: Settings, lake: Lake, version: str) -> None:
    found = lake.read_cost_samples("same")
    each = {(float(one.costs.device_ms()[0]), tuple(one.placement.device.tolist())) for one in found}
    assert len(found) == len(each) == 5 * 4, "two that both measured, and one of each"
    assert catalog.query(settings, "select count(*) as n from cost_samples") == [{"n": 20}]
    assert lake.read_cost_samples("killed") == []
    with collecting(lake, "another run", 1, version):
        pass
    assert len(list_files(lake.root / "sample_buffer", "**/*.parquet")) == 1, (
        "what other hosts have on its way is theirs"
    )
    with collecting(lake, "killed", 1, version):
        assert len(lake.read_cost_samples("killed")) == 1
    assert list_files(lake.root / "sample_buffer", "**/*") == []


def _files(name: str, address: str, copies: Path):
    from dreamshard.workloads import LookupFiles

    return LookupFiles({name: address}, copies=copies)


def _host(home: Path) -> "subprocess.Popen[bytes]":
    environment: Mapping[str, str] = {**os.environ, "DREAMSHARD_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", HOST],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
