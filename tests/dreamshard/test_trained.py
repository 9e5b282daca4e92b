"""The steps and files of a training by algorithm."""

from pathlib import Path

import pytest

from dreamshard import trained
from dreamshard.algorithms import ALGORITHMS, with_algorithm
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, tiny_tasks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_training_that_was_kept_in_files_goes_on_with_the_same_bits(algorithm: str, tmp_path: Path):
    config, tasks, testbed = with_algorithm(TINY, algorithm), tiny_tasks(), simulated()
    state = trained.start_training(pool_of(24), config, seed=0)
    proposals = trained.propose(state, tasks)
    samples = [testbed.measure(task, placement) for task, placement in proposals]
    trained.save_state(state, tmp_path / "state")
    placers = []
    for each in (state, trained.load_state(tmp_path / "state")):
        trained.fit_costs(each, samples)
        trained.improve_policy(each, tasks)
        assert (each.iteration, each.config.algorithm) == (1, algorithm)
        placers.append(trained.make_placer(each))
    trained.save_placer(placers[0], tmp_path / "placer")
    task = PlacementTask(pool_of(14), 3, 2**33)
    first, *others = [each.place(task) for each in (*placers, trained.load_placer(tmp_path / "placer"))]
    for placement in others:
        assert placement.device.tolist() == first.device.tolist()
    assert trained.networks_of(config)[0] == placers[0].cost_network.architecture


def test_a_training_starts_from_a_placer_of_its_own_algorithm_only():
    config = with_algorithm(TINY, "autoshard")
    placer = trained.make_placer(trained.start_training(pool_of(24), config, seed=0))
    warm = trained.continue_from(placer, config.warm(), seed=1)
    assert warm.warm
    assert warm.config.iterations == config.warm().iterations
    with pytest.raises(ValueError, match="one of autoshard, but the training is of dreamshard"):
        trained.continue_from(placer, TINY, seed=1)
