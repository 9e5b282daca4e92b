"""What counts as a checkpoint, regardless of what a killed process left beside it."""

from pathlib import Path

import pytest

from dreamshard.training import TrainingConfig, TrainingState
from dreamshard.workloads import read_tables
from storage.run_records import checkpoints
from tests.helpers.trained import start_training


@pytest.fixture
def state() -> TrainingState:
    path = Path(checkpoints.__file__).parents[2] / "dreamshard/workloads/data/mlperf-dlrm-dcnv2.csv"
    return start_training(read_tables(path), TrainingConfig(), seed=0)


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def test_a_state_comes_back_with_its_figures(store, state):
    checkpoints.save(store, "key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.load(store, "key", "iteration_02").config == state.config
    assert checkpoints.figures(store, "key", "iteration_02") == {"cost_loss": 0.5}
    assert checkpoints.is_complete(store, "key", 2)
    assert sorted(path.name for path in (store.checkpoints / "key").iterdir()) == [
        "iteration_02.json",
        "iteration_02.zip",
    ]


def test_what_a_killed_writer_left_is_no_iteration(store):
    training = store.checkpoints / "key"
    touch(training / "iteration_01.zip")
    touch(training / ".iteration_02.zip.1.7.tmp")
    assert checkpoints.last_iteration(store, "key") == 1


def test_iterations_are_counted_as_numbers(store):
    for name in ("iteration_09", "iteration_99", "iteration_100", "iteration_0x1", "iteration_7"):
        touch(store.checkpoints / "key" / f"{name}.zip")
    assert checkpoints.last_iteration(store, "key") == 100


def test_a_state_that_another_host_has_discarded_is_gone_without_ado(store, state):
    checkpoints.save(store, "key", "measured", state, {})
    checkpoints.discard(store, "key", "measured", "fitted")
    checkpoints.discard(store, "key", "measured")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        checkpoints.load(store, "key", "measured")
