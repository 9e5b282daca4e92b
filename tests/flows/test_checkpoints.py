"""What counts as a checkpoint, whatever a killed process left beside it."""

import os
from pathlib import Path

import pytest

from flows import checkpoints

NOBODY = 2**22 + 1  # above the largest process id that Linux gives


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setattr(checkpoints, "save_state", lambda _, path: state(path))
    return tmp_path


def state(path: Path, *names: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in names or ("config.json", "weights.safetensors"):
        (path / name).write_text("{}")


def test_folders_that_a_killed_writer_left_are_no_iterations_and_go_with_the_next_save(home):
    training = checkpoints.folder("key")
    state(training / "iteration_01")
    state(training / f"iteration_02.{NOBODY}.tmp")
    state(training / f"iteration_02.{NOBODY}.replaced.tmp")
    state(training / f"measured.{os.getpid()}.tmp")
    (training / f"iteration_02.json.{NOBODY}.tmp").write_text("{")
    assert checkpoints.last_iteration("key") == 1
    checkpoints.save("key", "iteration_02", None, {"cost_loss": 0.5})
    assert checkpoints.last_iteration("key") == 2
    assert [path.name for path in training.glob("*.tmp")] == [f"measured.{os.getpid()}.tmp"], "its writer is alive"


def test_iterations_are_counted_as_numbers(home):
    for name in ("iteration_09", "iteration_99", "iteration_100", "iteration_0x1", "iteration_7"):
        state(checkpoints.folder("key") / name)
    assert checkpoints.last_iteration("key") == 100


@pytest.mark.parametrize("left", ["config.json", "weights.safetensors"])
def test_half_a_state_is_none(home, left):
    state(checkpoints.folder("key") / "measured", left)
    state(checkpoints.folder("key") / "iteration_01", left)
    with pytest.raises(ValueError, match="run dreamshard profile"):
        checkpoints.require("key", "measured", "dreamshard profile")
    assert not checkpoints.is_complete("key", 1)
    assert checkpoints.last_iteration("key") is None
    state(checkpoints.folder("key") / "measured")
    checkpoints.require("key", "measured", "dreamshard profile")


def test_a_state_loses_its_name_before_its_files(home, monkeypatch):
    state(checkpoints.folder("key") / "measured")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt(path.name)

    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt, match=r"measured\.\d+\.discarded\.tmp"):
        checkpoints.discard("key", "measured")
    assert not (checkpoints.folder("key") / "measured").exists()
