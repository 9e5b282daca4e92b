"""Training that is killed or diverges: finished work is kept, and the next run continues from it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dreamshard.cost_model import TrainingDivergedError
from dreamshard.training import DreamShard
from storage.lake.parquet_files import read_parquet
from storage.run_records import checkpoints
from storage.settings import Settings
from storage.store import open_store
from tests.flows.commands import Dreamshard
from tests.helpers.trained import same

RUN = ("run", "--recipe", "smoke", "--json")
INTERRUPTED_ONCE, UNDISTURBED = (f"tests.flows.faulty_testbeds:{name}" for name in ("interrupted_once", "undisturbed"))


def start(home: Path, testbed: str, name: str = "") -> "subprocess.Popen[bytes]":
    code = "from flows.cli.app import main; main()"
    environment = {**os.environ, "DREAMSHARD_HOME": str(home)}
    environment.pop("PREFECT_HOME", None)
    return subprocess.Popen(
        [sys.executable, "-c", code, *RUN, "--testbed", testbed],
        env=environment,
        stdout=(home / f"out{name}").open("w"),
        stderr=(home / f"err{name}").open("w"),
        start_new_session=True,  # a Ctrl-C for it is none for the tests
    )


def test_ctrl_c_ends_a_run_and_keeps_what_was_finished(tmp_path):
    code, _, err = finish(tmp_path, "tests.flows.faulty_testbeds:interrupted")
    assert code == 130
    assert err.strip().splitlines()[-1].startswith("interrupted; finished work is kept")
    assert "Traceback" not in err
    assert iterations(tmp_path) == ["iteration_00", "iteration_01"]
    assert len(samples(tmp_path)) == 7


def finish(home: Path, testbed: str) -> tuple[int, str, str]:
    process = start(home, testbed)
    process.wait(600)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # Prefect's temporary server outlives a process that SIGKILL ended
    return process.returncode, (home / "out").read_text(), (home / "err").read_text()


def samples(home: Path) -> list[str]:
    """Ids of the samples that training measured, those of an iteration that is not complete at the end."""
    found = [
        read_parquet(file)
        for name in ("cost_samples", "sample_buffer")
        for file in (home / "lake" / name).rglob("*.parquet")
    ]
    return [row["sample_id"] for table in found for row in table.to_pylist() if row["device"] == 0 and row["iteration"]]


def iterations(home: Path) -> list[str]:
    return sorted(path.stem for path in (home / "checkpoints").glob("*/iteration_[0-9][0-9].zip"))


def test_a_run_killed_in_its_second_iteration_goes_on_from_the_first(tmp_path):
    # The testbed kills its own process with SIGKILL at the 8th measurement, once: three into the second iteration.
    code, _, _ = finish(tmp_path, "tests.flows.faulty_testbeds:killed_once")
    assert code == -signal.SIGKILL
    assert iterations(tmp_path) == ["iteration_00", "iteration_01"]
    measured = samples(tmp_path)
    assert len(measured) == 7
    code, out, err = finish(tmp_path, "tests.flows.faulty_testbeds:killed_once")
    assert code == 0, err
    assert iterations(tmp_path) == ["iteration_00", "iteration_01", "iteration_02"]
    assert set(measured) < set(samples(tmp_path))
    assert len(samples(tmp_path)) == 10, "nothing that was measured is measured again, and nothing is there twice"
    assert '"version": "models:/' in out
    assert "-2/1" in out


@pytest.mark.long
def test_two_runs_at_once_in_a_new_home_are_one_training_and_one_version(tmp_path):
    both = [start(tmp_path, "simulated", name) for name in ("a", "b")]
    assert [process.wait(600) for process in both] == [0, 0], (tmp_path / "erra").read_text()
    first, second = (json.loads((tmp_path / f"out{name}").read_text()) for name in ("a", "b"))
    assert (first["version"], first["training"]) == (second["version"], second["training"])
    assert len(set(samples(tmp_path))) == len(samples(tmp_path)) == 10


@pytest.fixture(scope="module")
def ingested(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with tables, for trainings of several algorithms."""
    home = tmp_path_factory.mktemp("ingested")
    done = shared_dreamshard("ingest", "meta-dlrm-2021", "--recipe", "smoke", home=home)
    assert done.returncode == 0, done.sentence
    return home


@pytest.mark.parametrize("algorithm", ["paper", "autoshard"])
def test_an_interrupted_training_of_a_published_algorithm_ends_with_the_bits_of_an_undisturbed_one(
    ingested: Path, shared_dreamshard: Dreamshard, algorithm: str
):
    train = ("train", "--recipe", "smoke", "--algorithm", algorithm, "--testbed")
    (ingested / "interrupted").unlink(missing_ok=True)
    before, trainings = len(samples(ingested)), {*(ingested / "checkpoints").glob("*")}
    assert shared_dreamshard(*train, INTERRUPTED_ONCE, home=ingested).returncode == 130
    assert len(samples(ingested)) == before + 7
    (stopped,) = {*(ingested / "checkpoints").glob("*")} - trainings
    for testbed in (INTERRUPTED_ONCE, UNDISTURBED):
        done = shared_dreamshard(*train, testbed, home=ingested)
        assert done.returncode == 0, done.sentence
    (other,) = {*(ingested / "checkpoints").glob("*")} - trainings - {stopped}
    assert len(samples(ingested)) == before + 20, "ten for each training, and nothing is measured again"
    store = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(ingested)}))
    ends = [checkpoints.load(store, folder.name, "iteration_02") for folder in (stopped, other)]
    assert same(*ends)


def test_a_nan_in_training_is_one_sentence_and_the_last_checkpoint_stays(ingested, shared_dreamshard, monkeypatch):
    def diverge(*_):
        raise TrainingDivergedError("the loss is nan in step 3; lower the learning rate")

    monkeypatch.setattr(DreamShard, "fit", diverge)
    trainings = {*(ingested / "checkpoints").glob("*")}
    done = shared_dreamshard("train", *RUN[1:3], "--testbed", "simulated", home=ingested)
    assert (done.returncode, done.sentence) == (1, "the loss is nan in step 3; lower the learning rate")
    (stopped,) = {*(ingested / "checkpoints").glob("*")} - trainings
    assert [path.name for path in stopped.glob("iteration_*.zip")] == ["iteration_00.zip"]
    assert not list(stopped.rglob("*.tmp"))
