import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from flows.runtime import testbed_pool
from storage.lake.lake import Lake
from storage.lake.parquet_files import read_parquet
from storage.mlflow_store import registry, runs
from storage.run_records import checkpoints
from storage.settings import Settings
from storage.store import open_store
from tests.flows.commands import Dreamshard, failed_with, files
from tests.helpers.lake import query
from tests.helpers.trained import same

RUN = ("run", "--recipe", "smoke", "--json", "--testbed")
KILLED, DYING, HANGING, INTERRUPTED, UNDISTURBED = (
    f"tests.flows.faulty_testbeds:{name}"
    for name in ("killed_once", "dying", "hanging", "interrupted_once", "undisturbed")
)


def start(home: Path, testbed: str, name: str = "") -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "DREAMSHARD_HOME": str(home)}
    environment.pop("PREFECT_HOME", None)
    return subprocess.Popen(
        [sys.executable, "-c", "from flows.cli.app import main; main()", *RUN, testbed],
        env=environment,
        stdout=(home / f"out{name}").open("w"),
        stderr=(home / f"err{name}").open("w"),
        start_new_session=True,
    )


def samples(home: Path) -> list[str]:
    """Ids of the samples that training measured, including an iteration that is not complete."""
    paths = [file for name in ("cost_samples", "sample_buffer") for file in (home / "lake" / name).rglob("*.parquet")]
    rows = [row for file in paths for row in read_parquet(file).to_pylist()]
    return [row["sample_id"] for row in rows if row["device"] == 0 and row["iteration"]]


def test_a_run_killed_in_iteration_two_continues_from_one(tmp_path: Path):
    # The testbed kills its own process with SIGKILL at the 8th measurement, once: three into the second iteration.
    for returncode, last, measured in ((-signal.SIGKILL, 1, 7), (0, 2, 10)):
        before = set(samples(tmp_path))
        process = start(tmp_path, KILLED)
        assert process.wait(600) == returncode, (tmp_path / "err").read_text()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # Prefect's temporary server outlives a process that SIGKILL ended
        iterations = sorted(path.stem for path in (tmp_path / "checkpoints").glob("*/iteration_[0-9][0-9].zip"))
        assert iterations == [f"iteration_{number:02}" for number in range(last + 1)]
        assert before <= set(samples(tmp_path))
        assert len(samples(tmp_path)) == measured, "nothing is measured twice"
    assert json.loads((tmp_path / "out").read_text())["version"].endswith("-x2/1")


def trained_by(dreamshard: Dreamshard, home: Path, *options: str) -> tuple[list[int], Path]:
    """Exit codes of two equal commands, and the only folder of checkpoints that they made."""
    before = {*(home / "checkpoints").glob("*")}
    codes = [dreamshard("train", *RUN[1:3], *options, home=home).returncode for _ in range(2)]
    (made,) = {*(home / "checkpoints").glob("*")} - before
    return codes, made


def test_an_interrupted_training_ends_with_the_same_bits(finished: Path, shared_dreamshard):
    autoshard, before = ("--algorithm", "autoshard", "--testbed"), len(samples(finished))
    codes, stopped = trained_by(shared_dreamshard, finished, *autoshard, INTERRUPTED)
    assert codes == [130, 0], "as after Ctrl-C"
    assert len(set(samples(finished))) == len(samples(finished)) > before, "nothing is measured twice"
    _, other = trained_by(shared_dreamshard, finished, *autoshard, UNDISTURBED)
    store = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(finished)}))
    assert same(*(checkpoints.load(store, folder.name, "iteration_02") for folder in (stopped, other)))


@pytest.mark.timeout(600, method="thread")  # the other method would take the alarm that the time limit is made of
def test_a_testbed_that_hangs_is_one_sentence_in_time(finished: Path, dreamshard: Dreamshard, monkeypatch):
    monkeypatch.setattr(testbed_pool, "ANSWER_S", 0.4)
    done = dreamshard("train", *RUN[1:3], "--testbed", HANGING, home=finished)
    failed_with(done, "measuring train-", "8 tables on 2 devices", "no answer within 0.4 s", "earlier samples are kept")
    assert (finished / "closed").read_text() == "xxx", "it is closed before each retry and after the last"


def test_a_chain_that_fails_leaves_an_earlier_one_as_it_was(finished: Path, shared_dreamshard: Dreamshard):
    def earlier() -> dict[str, int]:
        kept = ("lake/", "mlartifacts", "evaluations/")
        return {name: when for name, when in files(finished).items() if name.startswith(kept)}

    before, models = earlier(), shared_dreamshard("models", "--json", home=finished).stdout
    failed_with(shared_dreamshard(*RUN, DYING, home=finished), "rank 1 died while measuring")
    after = earlier()
    assert {name: after[name] for name in before} == before
    assert not [name for name in files(finished) if name.endswith(".tmp")]
    assert shared_dreamshard("models", "--json", home=finished).stdout == models


def test_a_chain_makes_one_whole_version_after_a_store_failure(finished, shared_dreamshard, monkeypatch):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(finished)})
    tried = []

    def away_at_first(owner, name: str) -> None:
        call = getattr(owner, name)

        def first_fails(*given, **more):
            tried.append(name)
            if tried.count(name) == 1:
                raise ConnectionError("the store is away")
            return call(*given, **more)

        monkeypatch.setattr(owner, name, first_fails)

    for owner, name in (
        (Lake, "write_tasks"), (Lake, "write_evaluation"), (checkpoints, "save"), (runs.Run, "log_table")
    ):  # fmt: skip
        away_at_first(owner, name)
    done = shared_dreamshard(*RUN, "simulated", "--seed", "1", home=finished)
    assert done.returncode == 0, done.sentence
    assert json.loads(done.stdout)["version"].endswith("/2")
    assert all(tried.count(name) > 1 for name in tried)
    assert [version.number for version in registry.versions(settings)] == [2, 1]
    (evaluated,) = query(
        settings, "select count(*) as rows, count(distinct (run_key, task, placer)) as once from evaluations"
    )
    assert evaluated["rows"] == evaluated["once"] > 0
