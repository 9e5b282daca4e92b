"""The same work on threads, on a Dask cluster and on a Ray cluster, each with one worker process."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.runtime.task_runners import task_runner
from tests.flows.commands import Dreamshard, failed_with

SMOKE = ("--recipe", "smoke")


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    pytest.importorskip("prefect_dask", reason="the extra `dask` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DREAMSHARD_HOME", str(tmp_path_factory.mktemp("worker")))  # of its lock; the lake is passed to it
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
    with cluster:
        yield f"dask:{cluster.scheduler_address}"


@pytest.fixture(scope="module")
def ray_running() -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    pytest.importorskip("prefect_ray", reason="the extra `ray` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
        ray.init(num_cpus=1, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
        yield "ray"
        ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A list of 16 small tables."""
    path = tmp_path_factory.mktemp("source") / "tables.csv"
    rows = [f"t{t},{100 * (t + 1)},{4 * (1 + t % 4)},{1 + t % 3}" for t in range(16)]
    path.write_text("\n".join(["name,rows,dim,pooling_factor", *rows]))
    return str(path)


Ingest = Callable[[str, Path], dict]


@pytest.fixture(scope="module")
def ingest(shared_dreamshard: Dreamshard, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingest]:
    database = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")  # one for all homes: a new one takes seconds
        patch.setattr("flows.tasks.ingestion.MOST_TABLES_PER_TASK", 6)

        def run(runner: str, home: Path) -> dict:
            patch.setenv("DREAMSHARD_TASK_RUNNER", runner)
            done = shared_dreamshard("ingest", source, *SMOKE, "--json", home=home)
            assert done.returncode == 0, done.sentence
            return json.loads(done.stdout)

        yield run


@pytest.fixture(scope="module")
def by_threads(ingest: Ingest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A home into which threads have ingested the source, and what they said."""
    home = tmp_path_factory.mktemp("threads")
    return home, ingest("threads", home)


def content(home: Path) -> dict[str, object]:
    """All of a lake but the times of writing."""
    found: dict[str, object] = {}
    for file in (home / "lake").rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        kept = [name for name in table.column_names if name != "created_at"]
        found[str(file.relative_to(home))] = (
            file.read_bytes() if "lookups" in file.parts else table.select(kept).to_pylist()
        )
    return found


@pytest.mark.server
@pytest.mark.parametrize("cluster", ["dask_address", "ray_running"])
def test_a_cluster_ingests_what_threads_ingest(
    cluster: str,
    request: pytest.FixtureRequest,
    by_threads: tuple[Path, dict],
    ingest: Ingest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    home, said = by_threads
    assert said["new_tables"] == 16
    runner = request.getfixturevalue(cluster)
    monkeypatch.setattr("storage.lake.lake.write_lookups", lambda *_: pytest.fail("written by this process"))
    assert ingest(runner, tmp_path) == said
    assert content(tmp_path) == content(home)
    assert len(list((tmp_path / "lake" / "ingested").iterdir())) == 3


@pytest.mark.server
@pytest.mark.parametrize("cluster", ["dask_address", "ray_running"])
def test_a_cluster_measures_the_shards_that_the_emulated_testbed_then_finds(
    cluster: str,
    request: pytest.FixtureRequest,
    by_threads: tuple[Path, dict],
    dreamshard: Dreamshard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    shutil.copytree(by_threads[0] / "lake", tmp_path / "lake")
    monkeypatch.setenv("DREAMSHARD_TASK_RUNNER", request.getfixturevalue(cluster))
    monkeypatch.setattr(
        "dreamshard.testbeds.shard_runner.ShardRunner.measure", lambda *_: pytest.fail("measured in this process")
    )
    done = dreamshard("profile", *SMOKE, "--testbed", "emulated", "--json", home=tmp_path)
    assert done.returncode == 0, done.sentence
    lake = tmp_path / "lake"
    samples = [row for file in (lake / "cost_samples").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    shards = [row for file in (lake / "shard_costs").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(samples) == 2 * 5
    measured = sorted(row["forward_ms"] for row in shards)
    used = {row["forward_compute_ms"] for row in samples if row["num_tables"]}  # two placements may share a shard
    assert sorted(used) == pytest.approx(measured)


@pytest.mark.parametrize("wanted", ["spark", "threads:4", "thread"])
def test_a_runner_that_is_none_is_refused_with_those_there_are(wanted: str):
    with pytest.raises(ValueError, match=f"'{wanted}', which names no task runner.*dask:tcp://HOST:PORT"):
        task_runner(wanted)


@pytest.mark.flow
@pytest.mark.parametrize(("extra", "package"), [("dask", "prefect_dask"), ("ray", "ray")])
def test_an_extra_that_is_missing_is_named(
    extra: str, package: str, dreamshard: Dreamshard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("DREAMSHARD_TASK_RUNNER", extra)
    failed_with(
        dreamshard("ingest", "criteo-kaggle", *SMOKE, home=tmp_path), f"asks for {extra}", f"'dreamshard[{extra}]'"
    )


def test_addresses_reach_the_runners():
    pytest.importorskip("prefect_dask", reason="the extra `dask` is not installed")
    pytest.importorskip("prefect_ray", reason="the extra `ray` is not installed")
    assert task_runner("dask:tcp://host:8786").address == "tcp://host:8786"
    assert task_runner("ray:ray://host:10001").address == "ray://host:10001"
