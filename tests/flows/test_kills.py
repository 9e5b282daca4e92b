"""Kill -9 in each stage of a chain: no measured sample is lost, and the same command ends as if undisturbed."""

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import mlflow
import pyarrow.parquet as pq
import pytest

from tests.helpers import forks

pytestmark = pytest.mark.long

RUN = ("run", "--recipe", "smoke", "--testbed", "simulated", "--json")
DIFFERS = ("place_ms", "created_at", "evaluation_id", "sample_id", "run_key")  # from home to home
LOOK_S = 0.02
END_S = 600.0


def rows(home: Path, *names: str) -> list[dict[str, object]]:
    """The rows of the lake's files below these folders."""
    files = (file for name in names for file in (home / "lake" / name).rglob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def samples(home: Path) -> set[str]:
    return {str(row["sample_id"]) for row in rows(home, "cost_samples", "sample_buffer")}


def outcome(home: Path) -> dict[str, object]:
    """All that a chain leaves, without ids and times: measured costs, evaluations and versions."""
    measured = rows(home, "cost_samples", "sample_buffer")
    kept = [
        [{name: value for name, value in row.items() if name not in DIFFERS} for row in each]
        for each in (measured, rows(home, "evaluations"))
    ]
    costs, evaluations = (sorted(json.dumps(row, sort_keys=True, default=str) for row in each) for each in kept)
    once = len({(row["sample_id"], row["device"]) for row in measured}) == len(measured)
    versions = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db").search_model_versions()
    return {"costs": costs, "once": once, "evaluations": evaluations, "versions": [each.version for each in versions]}


def stage_of(home: Path, since: float) -> str:
    """The stage that a run of this home is in that began after `since`; `start` before the first."""
    if not (home / "mlflow.db").exists():
        return "start"
    query = (
        "select tags.value from runs join tags on tags.run_uuid = runs.run_uuid and tags.key = 'dreamshard.stage' "
        "where runs.status = 'RUNNING' and runs.start_time >= ? order by runs.start_time desc limit 1"
    )
    with closing(sqlite3.connect(home / "mlflow.db", timeout=30)) as connection:
        try:
            found = connection.execute(query, (1000 * since,)).fetchone()
        except sqlite3.OperationalError:  # it has no tables yet
            found = None
    return found[0] if found else "start"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forks.prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


def test_a_chain_killed_in_each_stage_ends_as_an_undisturbed_one(api: str, tmp_path: Path):
    log, undisturbed, home = tmp_path / "log", tmp_path / "undisturbed", tmp_path / "killed"
    spans_s: dict[str, float] = {}
    began, running = time.time(), forks.forked(RUN, undisturbed, api, log)
    while running.is_alive() and time.time() < began + END_S:
        stage = stage_of(undisturbed, began)
        spans_s[stage] = spans_s.get(stage, 0.0) + LOOK_S
        time.sleep(LOOK_S)
    assert running.exitcode == 0, log.read_text()

    draw, known, killed = random.Random(0), set[str](), list[str]()
    for number, stage in enumerate(spans_s):
        began, running = time.time(), forks.forked(RUN, home, api, log)
        while running.is_alive() and stage_of(home, began) in list(spans_s)[:number]:
            time.sleep(LOOK_S)
        time.sleep(draw.uniform(0.0, spans_s[stage]))
        if running.is_alive():
            killed.append(stage_of(home, began))
            forks.kill(running, group=number % 2 == 0)
        assert known <= samples(home)
        known = samples(home)
    assert len(killed) > len(spans_s) / 2, killed

    running = forks.forked(RUN, home, api, log)
    running.join(END_S)
    assert running.exitcode == 0, log.read_text()
    assert outcome(home) == outcome(undisturbed)
