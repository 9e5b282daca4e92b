import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.ingest import VARIABLE, task_runner
from tests.flows.commands import Dreamshard

SMOKE = ("--recipe", "smoke")


@pytest.fixture(scope="module")
def ray_running() -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    pytest.importorskip("prefect_ray", reason="the extra `ray` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
        ray.init(num_cpus=1, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
        yield "ray:auto"
        ray.shutdown()


def _content(home: Path) -> dict[str, object]:
    """All of a lake but the times of writing."""
    content: dict[str, object] = {}
    for file in (home / "lake").rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        kept = [name for name in table.column_names if name != "created_at"]
        content[str(file.relative_to(home))] = (
            file.read_bytes() if "lookups" in file.parts else table.select(kept).to_pylist()
        )
    return content


@pytest.mark.long
def test_ray_ingests_what_threads_do(
    ray_running: str, dreamshard: Dreamshard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from prefect.testing.utilities import prefect_test_harness

    source = tmp_path / "tables.csv"
    rows = [f"t{t},{100 * (t + 1)},{4 * (1 + t % 4)},{1 + t % 3}" for t in range(16)]
    source.write_text("\n".join(["name,rows,dim,pooling_factor", *rows]))
    monkeypatch.setattr("flows.ingest.MOST_TABLES_PER_TASK", 6)
    with prefect_test_harness(server_startup_timeout=300):
        done = dreamshard("ingest", str(source), *SMOKE, "--json", home=tmp_path / "threads")
        assert done.returncode == 0, done.sentence
        monkeypatch.setenv(VARIABLE, ray_running)
        with monkeypatch.context() as patch:
            patch.setattr("storage.lake.lake.write_lookups", lambda *_: pytest.fail("written by this process"))
            there = dreamshard("ingest", str(source), *SMOKE, "--json", home=tmp_path / "ray")
        assert there.returncode == 0, there.sentence
        assert json.loads(there.stdout) == json.loads(done.stdout)
        assert _content(tmp_path / "ray") == _content(tmp_path / "threads")


def test_an_unknown_task_runner_or_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for wanted in ("spark", "threads:4", "ray"):
        monkeypatch.setenv(VARIABLE, wanted)
        with pytest.raises(ValueError):
            task_runner()
    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    monkeypatch.setenv(VARIABLE, "ray:auto")
    with pytest.raises(ValueError):
        task_runner()
