"""Training that is killed, diverges or loses its ranks: what was finished stays, and the next run goes on from it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN = ("run", "--recipe", "smoke", "--json")


def start(home: Path, testbed: str, code: str = "from flows.cli import main; main()") -> "subprocess.Popen[str]":
    environment = {**os.environ, "DREAMSHARD_HOME": str(home), "PYTHONPATH": str(HERE)}
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


def test_a_rank_that_dies_twice_is_one_sentence_and_what_was_measured_stays(tmp_path):
    code, _, err = finish(start(tmp_path, "faulty_testbeds:dying"))
    assert code == 1
    assert err.strip().splitlines()[-1] == "dreamshard: rank 1 died while measuring train-000; look at its traceback"
    assert len(lake_files(tmp_path)) == 3
    assert iterations(tmp_path) == ["iteration_00"]


@pytest.mark.parametrize("step", ["fit_costs", "improve_policy"])
def test_a_nan_in_training_is_one_sentence_and_the_last_checkpoint_stays(tmp_path, step):
    code = (
        "from dreamshard import train_cost, training\n"
        "def diverge(*_):\n"
        "    raise train_cost.TrainingDivergedError('the loss is nan in step 3; lower the learning rate')\n"
        f"training.{step} = diverge\n"
        "from flows.cli import main; main()"
    )
    status, _, err = finish(start(tmp_path, "simulated", code))
    assert status == 1
    assert err.strip().splitlines()[-1] == "dreamshard: the loss is nan in step 3; lower the learning rate"
    assert iterations(tmp_path) == ["iteration_00"]
    assert list((tmp_path / "checkpoints").rglob("*.tmp")) == []
