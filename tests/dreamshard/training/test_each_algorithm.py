"""A training of any algorithm: a run is its seed, an interrupted run is the run, and one goes on from a placer."""

from pathlib import Path

import pytest
import torch

from dreamshard.names import ALGORITHMS
from dreamshard.tasks import PlacementTask
from dreamshard.training import TRAINING_ALGORITHMS, TrainingState, load_placer, load_state, save_placer, with_algorithm
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import (
    TINY,
    bits,
    continue_from,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    rounds,
    same,
    save_state,
    start_training,
    tiny_tasks,
)

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def begin(algorithm: str, seed: int = 0) -> TrainingState:
    return start_training(pool_of(24), with_algorithm(TINY, algorithm), seed)


def test_every_algorithm_can_be_trained():
    assert tuple(TRAINING_ALGORITHMS) == ALGORITHMS


@each_algorithm
def test_a_seed_gives_the_same_bits_and_another_seed_others(algorithm: str):
    (one, samples), (two, again), (other, _) = (rounds(begin(algorithm, seed), 1) for seed in (3, 3, 4))
    assert same(one, two)
    assert [s.overall_ms for s in samples] == [s.overall_ms for s in again]
    assert not same(one, other)


@each_algorithm
@pytest.mark.parametrize("warm", [False, True])
def test_a_run_that_stops_after_every_step_ends_with_the_same_bits(algorithm: str, warm: bool, tmp_path: Path):
    """As flows run it: every step loads the state that the step before saved."""
    before, earlier = rounds(begin(algorithm, seed=1), 1) if warm else (None, [])

    def start() -> TrainingState:
        if before is None:
            return begin(algorithm)
        return continue_from(make_placer(before), with_algorithm(TINY, algorithm), seed=7)

    def kept(state: TrainingState) -> TrainingState:
        save_state(state, tmp_path / "state")
        return load_state(tmp_path / "state")

    whole, _ = rounds(start(), 3, earlier)
    state, samples = start(), list(earlier)
    for _ in range(3):
        samples += [simulated().measure(task, placement) for task, placement in propose(state, tiny_tasks())]
        state = kept(state)
        fit_costs(state, samples)
        state = kept(state)
        improve_policy(state, tiny_tasks())
        state = kept(state)
    assert (state.iteration, state.warm, state.config.algorithm) == (3, warm, algorithm)
    assert same(state, whole)


@each_algorithm
def test_a_placer_from_files_places_the_same(algorithm: str, tmp_path: Path):
    placer, task = make_placer(rounds(begin(algorithm), 1)[0]), PlacementTask(pool_of(14), 3, 2**33)
    save_placer(placer, tmp_path / "placer")
    loaded = load_placer(tmp_path / "placer")
    assert loaded.place(task) == placer.place(task)
    assert (loaded.name, loaded.cost_network.measured_on) == (algorithm, placer.cost_network.measured_on)


@pytest.mark.parametrize("algorithm", ["dreamshard", "autoshard"])
def test_the_first_round_has_nothing_held_out_and_later_ones_have(algorithm: str):
    state, tasks = begin(algorithm), tiny_tasks()
    samples = [simulated().measure(*proposal) for proposal in propose(state, tasks)]
    first = fit_costs(state, samples)
    improve_policy(state, tasks)
    samples += [simulated().measure(*proposal) for proposal in propose(state, tasks)]
    second = fit_costs(state, samples)
    assert first.heldout_mape is None
    assert second.heldout_mape > 0
    assert -1 <= second.heldout_spearman <= 1


@pytest.mark.parametrize("algorithm", ["dreamshard", "autoshard"])
def test_going_on_from_a_placer_keeps_its_networks_and_leaves_it_as_it_is(algorithm: str):
    before, samples = rounds(begin(algorithm), 1)
    kept = {name: value.clone() for name, value in bits(before).items() if name != "generator"}
    placer = make_placer(before)
    state = continue_from(placer, with_algorithm(TINY, algorithm).warm(), seed=7)
    assert state.warm
    assert all(torch.equal(bits(state)[name], value) for name, value in kept.items())
    assert torch.equal(state.normaliser.mean, placer.normaliser.mean)
    rounds(state, 1, samples)
    assert all(torch.equal(bits(before)[name], value) for name, value in kept.items())
    assert not same(state, before)


def test_a_training_starts_from_a_placer_of_its_own_algorithm_only():
    with pytest.raises(ValueError, match="training of dreamshard cannot start from a placer of autoshard"):
        continue_from(make_placer(begin("autoshard")), TINY, seed=1)
