"""Training that is killed, diverges or loses its ranks: what was finished stays, and the next run goes on from it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dreamshard import training
from dreamshard.train_cost import TrainingDivergedError

HERE = Path(__file__).parent
RUN = ("run", "--recipe", "smoke", "--json")


def start(home: Path, testbed: str) -> "subprocess.Popen[str]":
    code = "from flows.cli import main; main()"
    environment = {
        **os.environ,
        "DREAMSHARD_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    environment.pop("PREFECT_HOME", None)
    return subprocess.Popen(
        [sys.executable, "-c", code, *RUN, "--testbed", testbed],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


def lake_files(home: Path) -> set[Path]:
    return set((home / "lake" / "cost_samples").rglob("*.parquet"))


def iterations(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "checkpoints").glob("*/iteration_[0-9][0-9]"))


def test_a_run_killed_in_its_second_iteration_goes_on_from_the_first(tmp_path):
    # The testbed kills its own process with SIGKILL at the 8th measurement, once: three into the second iteration.
    process = start(tmp_path, "faulty_testbeds:killed_once")
    code, _, _ = finish(process)
    assert code == -signal.SIGKILL
    assert iterations(tmp_path) == ["iteration_00", "iteration_01"]
    measured = lake_files(tmp_path)
    assert len(measured) == 7
    code, out, err = finish(start(tmp_path, "faulty_testbeds:killed_once"))
    assert code == 0, err
    assert iterations(tmp_path) == ["iteration_00", "iteration_01", "iteration_02"]
    assert measured < lake_files(tmp_path)
    assert len(lake_files(tmp_path)) == 10, "nothing that was measured is measured again"
    assert '"version": "1"' in out


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Run the smoke recipe in this process; gives the exit code and the sentence shown."""
    from flows.cli import app, sentence

    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(HERE))

    def run(testbed: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*RUN, "--testbed", testbed])
        return result.exit_code, sentence(result.exception) if result.exception else ""

    return run


def test_a_rank_that_dies_twice_is_one_sentence_and_what_was_measured_stays(tmp_path, run_here):
    assert run_here("faulty_testbeds:dying") == (1, "rank 1 died while measuring train-000; look at its traceback")
    assert len(lake_files(tmp_path)) == 3
    assert iterations(tmp_path) == ["iteration_00"]


@pytest.mark.parametrize("step", ["fit_costs", "improve_policy"])
def test_a_nan_in_training_is_one_sentence_and_the_last_checkpoint_stays(tmp_path, run_here, monkeypatch, step):
    def diverge(*_):
        raise TrainingDivergedError("the loss is nan in step 3; lower the learning rate")

    monkeypatch.setattr(training, step, diverge)
    assert run_here("simulated") == (1, "the loss is nan in step 3; lower the learning rate")
    assert iterations(tmp_path) == ["iteration_00"]
    assert list((tmp_path / "checkpoints").rglob("*.tmp")) == []
