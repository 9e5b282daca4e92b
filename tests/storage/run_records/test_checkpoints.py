"""What counts as a checkpoint, regardless of what a killed process left beside it."""

from pathlib import Path

import pytest

from dreamshard.training import TrainingConfig
from storage.run_records import checkpoints
from tests.helpers.samples import four_tables
from tests.helpers.trained import start_training


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def test_a_state_comes_back_with_its_figures_until_discarded(store):
    state = start_training(four_tables(), TrainingConfig(), seed=0)
    checkpoints.save(store, "key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.load(store, "key", "iteration_02").config == state.config
    assert checkpoints.figures(store, "key", "iteration_02") == {"cost_loss": 0.5}
    assert checkpoints.is_complete(store, "key", 2)
    assert {path.name for path in (store.checkpoints / "key").iterdir()} == {"iteration_02.json", "iteration_02.zip"}
    for _ in range(2):
        checkpoints.discard(store, "key", "iteration_02", "fitted")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        checkpoints.load(store, "key", "iteration_02")


def test_iterations_are_counted_as_numbers_of_whole_files(store):
    touch(store.checkpoints / "key" / ".iteration_101.zip.1.7.tmp")
    for name in ("iteration_09", "iteration_99", "iteration_100", "iteration_0x1", "iteration_7"):
        touch(store.checkpoints / "key" / f"{name}.zip")
    assert checkpoints.last_iteration(store, "key") == 100
