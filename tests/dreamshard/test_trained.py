"""A training of any algorithm: a run is its seed, an interrupted run is the run, and one goes on from a placer."""

from pathlib import Path

import pytest
import torch

from dreamshard import trained
from dreamshard.algorithms import ALGORITHMS, with_algorithm
from dreamshard.tasks import PlacementTask
from dreamshard.trained import State
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, bits, rounds, same, tiny_tasks

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def begin(algorithm: str, seed: int = 0) -> State:
    return trained.start_training(pool_of(24), with_algorithm(TINY, algorithm), seed)


@each_algorithm
def test_a_seed_gives_the_same_bits_and_another_seed_others(algorithm: str):
    (one, samples), (two, again), (other, _) = (rounds(begin(algorithm, seed), 1) for seed in (3, 3, 4))
    assert same(one, two)
    assert [s.overall_ms for s in samples] == [s.overall_ms for s in again]
    assert not same(one, other)


@each_algorithm
@pytest.mark.parametrize("warm", [False, True])
def test_a_run_that_was_stopped_twice_ends_with_the_same_bits(algorithm: str, warm: bool, tmp_path: Path):
    """Between fitting and improving, and after the round."""
    before, earlier = rounds(begin(algorithm, seed=1), 1) if warm else (None, [])

    def start() -> State:
        if before is None:
            return begin(algorithm)
        return trained.continue_from(trained.make_placer(before), with_algorithm(TINY, algorithm), seed=7)

    def kept(state: State, name: str) -> State:
        trained.save_state(state, tmp_path / name)
        return trained.load_state(tmp_path / name)

    whole, _ = rounds(start(), 2, earlier)
    state = start()
    proposals = trained.propose(state, tiny_tasks())
    samples = [*earlier, *(simulated().measure(task, placement) for task, placement in proposals)]
    trained.fit_costs(state, samples)
    state = kept(state, "fitted")
    trained.improve_policy(state, tiny_tasks())
    state, _ = rounds(kept(state, "improved"), 1, samples)
    assert (state.iteration, state.warm, state.config.algorithm) == (2, warm, algorithm)
    assert same(state, whole)


@each_algorithm
def test_a_placer_that_was_kept_in_files_places_the_same(algorithm: str, tmp_path: Path):
    state, _ = rounds(begin(algorithm), 1)
    placer, task = trained.make_placer(state), PlacementTask(pool_of(14), 3, 2**33)
    trained.save_placer(placer, tmp_path / "placer")
    assert trained.load_placer(tmp_path / "placer").place(task).device.equal(placer.place(task).device)
    assert trained.networks_of(with_algorithm(TINY, algorithm))[0] == placer.cost_network.architecture


@pytest.mark.parametrize("algorithm", ["dreamshard", "autoshard"])
def test_the_first_round_has_nothing_held_out_and_later_ones_have(algorithm: str):
    state, tasks = begin(algorithm), tiny_tasks()
    samples = [simulated().measure(*proposal) for proposal in trained.propose(state, tasks)]
    first = trained.fit_costs(state, samples)
    trained.improve_policy(state, tasks)
    samples += [simulated().measure(*proposal) for proposal in trained.propose(state, tasks)]
    second = trained.fit_costs(state, samples)
    assert first.heldout_mape is None
    assert second.heldout_mape > 0
    assert -1 <= second.heldout_spearman <= 1


@pytest.mark.parametrize("algorithm", ["dreamshard", "autoshard"])
def test_going_on_from_a_placer_keeps_its_networks_and_leaves_it_as_it_is(algorithm: str):
    before, samples = rounds(begin(algorithm), 1)
    kept = {name: value.clone() for name, value in bits(before).items() if name != "generator"}
    placer = trained.make_placer(before)
    state = trained.continue_from(placer, with_algorithm(TINY, algorithm).warm(), seed=7)
    assert state.warm
    assert all(torch.equal(bits(state)[name], value) for name, value in kept.items())
    assert torch.equal(state.normaliser.mean, placer.normaliser.mean)
    rounds(state, 1, samples)
    assert all(torch.equal(bits(before)[name], value) for name, value in kept.items())
    assert not same(state, before)


def test_a_training_starts_from_a_placer_of_its_own_algorithm_only():
    with pytest.raises(ValueError, match="one of autoshard, but the training is of dreamshard"):
        trained.continue_from(trained.make_placer(begin("autoshard")), TINY, seed=1)
