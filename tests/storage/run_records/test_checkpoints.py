import pytest

from dreamshard.training import TrainingConfig
from storage.run_records import checkpoints
from tests.helpers.samples import four_tables
from tests.helpers.trained import start_training


def test_a_state_comes_back_with_its_figures_until_discarded(store):
    state = start_training(four_tables(), TrainingConfig(), seed=0)
    checkpoints.save(store, "key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.load(store, "key", "iteration_02").config == state.config
    assert checkpoints.figures(store, "key", "iteration_02") == {"cost_loss": 0.5}
    assert checkpoints.is_complete(store, "key", 2)
    assert {path.name for path in (store.checkpoints / "key").iterdir()} == {"iteration_02.json", "iteration_02.zip"}
    for _ in range(2):
        checkpoints.discard(store, "key", "iteration_02", "fitted")
    with pytest.raises(ValueError):
        checkpoints.load(store, "key", "iteration_02")
