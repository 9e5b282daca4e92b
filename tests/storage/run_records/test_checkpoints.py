"""What counts as a checkpoint, whatever a killed process left beside it."""

import os
from pathlib import Path

import pytest

from dreamshard.training import TrainingConfig, TrainingState, start_training
from dreamshard.workloads.csv import read_tables
from storage.run_records import checkpoints

NOBODY = 2**22 + 1  # above the largest process id that Linux gives


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.delenv("DREAMSHARD_STORE", raising=False)
    return tmp_path


@pytest.fixture
def state() -> TrainingState:
    path = Path(checkpoints.__file__).parents[2] / "dreamshard/workloads/data/mlperf-dlrm-dcnv2.csv"
    return start_training(read_tables(path).tables, TrainingConfig(), seed=0)


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def test_a_state_comes_back_with_its_figures(home, state):
    checkpoints.save("key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.load("key", "iteration_02").config == state.config
    assert checkpoints.figures("key", "iteration_02") == {"cost_loss": 0.5}
    assert checkpoints.is_complete("key", 2)
    assert sorted(path.name for path in (home / "checkpoints/key").iterdir()) == [
        "iteration_02.json",
        "iteration_02.zip",
    ]


def test_what_a_killed_writer_left_is_no_iteration_and_goes_with_the_next_save(home, state):
    training = home / "checkpoints" / "key"
    touch(training / "iteration_01.zip")
    touch(training / f"iteration_02.zip.{NOBODY}.7.tmp")
    touch(training / f"iteration_02.json.{NOBODY}.7.tmp")
    touch(training / f"measured.zip.{os.getpid()}.7.tmp")
    assert checkpoints.last_iteration("key") == 1
    checkpoints.save("key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.last_iteration("key") == 2
    assert [path.name for path in training.glob("*.tmp")] == [f"measured.zip.{os.getpid()}.7.tmp"], (
        "its writer is alive"
    )


def test_a_writer_killed_in_between_leaves_no_state(home, state, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.zipfile.ZipFile, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save("key", "iteration_01", state, {})
    assert checkpoints.last_iteration("key") is None
    with pytest.raises(ValueError, match="run dreamshard profile"):
        checkpoints.require("key", "iteration_01", "dreamshard profile")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        checkpoints.load("key", "iteration_01")


def test_iterations_are_counted_as_numbers(home):
    for name in ("iteration_09", "iteration_99", "iteration_100", "iteration_0x1", "iteration_7"):
        touch(home / "checkpoints" / "key" / f"{name}.zip")
    assert checkpoints.last_iteration("key") == 100


@pytest.mark.parametrize("content", [b"", b"PK half a file"])
def test_a_damaged_state_is_one_clear_error(home, content):
    touch(home / "checkpoints" / "key" / "iteration_01.zip")
    (home / "checkpoints" / "key" / "iteration_01.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"iteration_01\.zip cannot be read .* remove it"):
        checkpoints.load("key", "iteration_01")


def test_a_state_that_another_host_has_discarded_is_gone_without_ado(home, state):
    checkpoints.save("key", "measured", state, {})
    checkpoints.discard("key", "measured", "fitted")
    checkpoints.discard("key", "measured")
    with pytest.raises(ValueError, match="run dreamshard profile"):
        checkpoints.require("key", "measured", "dreamshard profile")
