import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.tables import Placement
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from dreamshard.training import (
    TRAINING_ALGORITHMS,
    TrainingConfig,
    TrainingState,
    load_placer,
    load_state,
    save_placer,
    with_algorithm,
)
from dreamshard.training.config import Algorithm
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import (
    TINY,
    bits,
    fit_costs,
    improve_policy,
    learnt,
    learnt_placer,
    make_placer,
    measured,
    propose,
    rounds,
    same,
    save_state,
    start_training,
    tiny_tasks,
)

each_algorithm = pytest.mark.parametrize("algorithm", TRAINING_ALGORITHMS)


def begin(algorithm="dreamshard", seed: int = 0, base=None) -> TrainingState:
    return start_training(pool_of(24), with_algorithm(TINY, algorithm), seed, base=base)


@each_algorithm
def test_proposals_are_legal_and_as_many_as_asked_for(algorithm):
    assert tuple(TRAINING_ALGORITHMS) == get_args(Algorithm)
    proposals = propose(begin(algorithm), tiny_tasks())
    assert len(proposals) == TINY.placements_per_iteration
    assert not any(violation(task, placement) for task, placement in proposals)


def test_exploration_keeps_tables_of_like_work_together():
    state = start_training(pool_of(24), replace(TINY, exploration=1.0), seed=0)
    heaviest = set()
    for task, placement in propose(state, tiny_tasks()):
        device = placement.device[(task.tables.dim * task.tables.pooling_factor).argsort()]
        assert len(device.unique_consecutive()) == len(device.unique())
        heaviest.add(int(device[-1]))
    assert len(heaviest) > 1, "no device always has the heaviest tables"


def test_tasks_too_tight_for_the_policy_are_an_error():
    full = PlacementTask(tables_of([1000] * 3), 1, 48_000)
    assert len(propose(begin(), [full])) == TINY.placements_per_iteration
    with pytest.raises(NoPlacementError):
        propose(begin(), [PlacementTask(full.tables, 2, 24_000)])  # room for the sum, not for any split


@each_algorithm
@pytest.mark.parametrize("warm", [False, True])
def test_a_run_stopped_after_every_step_ends_with_its_seeds_bits(algorithm, warm: bool, tmp_path: Path):
    """As flows run it: every step loads the state that the step before saved. Another seed ends with others."""
    before, earlier = rounds(begin(algorithm, seed=1), 1) if warm else (None, [])

    def start(seed: int = 7) -> TrainingState:
        return begin(algorithm, seed, base=make_placer(before) if before else None)

    def kept(state: TrainingState) -> TrainingState:
        save_state(state, tmp_path / "state")
        return load_state(tmp_path / "state")

    whole, _ = rounds(start(), 3, earlier)
    state, samples = start(), list(earlier)
    for _ in range(3):
        samples += measured(state, tiny_tasks())
        state = kept(state)
        fit_costs(state, samples)
        state = kept(state)
        improve_policy(state, tiny_tasks())
        state = kept(state)
    assert (state.iteration, state.config.algorithm) == (3, algorithm)
    assert same(state, whole)
    proposed = [[sample.placement for sample in rounds(start(seed), 1, earlier)[1]] for seed in (7, 8)]
    assert proposed[0] == [sample.placement for sample in samples[: len(proposed[0])]] != proposed[1]


@each_algorithm
def test_going_on_from_a_placer_leaves_it_unchanged(algorithm):
    before, samples = rounds(begin(algorithm), 1)
    kept = {name: value.clone() for name, value in bits(before).items() if name != "generator"}
    placer = make_placer(before)
    state = start_training(pool_of(24), with_algorithm(TINY, algorithm).warm(), seed=7, base=placer)
    assert state.normaliser is placer.normaliser
    assert all(torch.equal(bits(state)[name], value) for name, value in kept.items())
    samples += measured(state, tiny_tasks())
    assert fit_costs(state, samples).heldout_mape > 0
    assert fit_costs(begin(algorithm), samples).heldout_mape is None, "without an earlier fit"
    improve_policy(state, tiny_tasks())
    assert all(torch.equal(bits(before)[name], value) for name, value in kept.items())
    assert not same(state, before)
    other = "paper" if algorithm != "paper" else "dreamshard"
    with pytest.raises(ValueError):
        begin(other, base=placer)


def test_placements_that_did_not_fit_are_not_learnt_from():
    state, other = begin(), begin()
    samples = measured(state, tiny_tasks())
    too_large = Infeasible(device=0, asked_bytes=2, free_bytes=1)
    misfit = replace(samples[0], costs=DeviceCosts(torch.zeros(2, 4)), infeasible=too_large)
    propose(other, tiny_tasks())
    assert fit_costs(state, [*samples, misfit]).loss == fit_costs(other, samples).loss


def test_a_warm_training_is_shorter_and_slower_and_settings_are_kept():
    config = TrainingConfig(warm_iterations=3, warm_rate=0.5)
    assert config.warm().measurements == 30 < config.measurements == 100
    assert config.warm().cost_learning_rate == 0.5 * config.cost_learning_rate
    assert replace(config, iterations=2).warm().iterations == 2
    for name, zero in (("iterations", 0), ("cost_learning_rate", 0.0)):
        with pytest.raises(ValueError, check=lambda error, name=name: error.errors()[0]["loc"] == (name,)):
            TrainingConfig(**{name: zero})
    changed = replace(with_algorithm(TINY, "paper"), cost_learning_rate=1e-3)
    assert with_algorithm(changed, "paper") == changed


TASK = PlacementTask(pool_of(14), 3, 2**33)


@pytest.fixture
def folder(tmp_path):
    save_placer(learnt_placer(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("algorithm", TRAINING_ALGORITHMS)
def test_a_loaded_placer_places_and_predicts_the_same(algorithm, tmp_path):
    placer, where = learnt_placer(algorithm), Placement.whole(torch.arange(14) % 3, 3)
    save_placer(placer, tmp_path / "model")
    loaded = load_placer(tmp_path / "model")
    assert loaded.place(TASK) == placer.place(TASK)
    assert (loaded.name, loaded.cost_network.measured_on) == (algorithm, placer.cost_network.measured_on)
    if algorithm != "autoshard":
        assert float(loaded.predict(TASK, where).overall_ms()) == float(placer.predict(TASK, where).overall_ms())


def test_options_are_kept_and_no_temporary_file_stays(folder):
    with pytest.raises(ValueError):
        load_state(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "weights.safetensors"]
    save_placer(replace(learnt_placer(), budget_ms=7.0, columns=False, inference="policy"), folder)
    loaded = load_placer(folder)
    assert (loaded.budget_ms, loaded.columns, loaded.inference) == (7.0, False, "policy")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def change_config(**values):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def change_tensors(name: str, **values: torch.Tensor):
    """Leave a tensor out, or replace it."""

    def change(folder):
        tensors = load_file(folder / "weights.safetensors")
        del tensors[name]
        save_file(tensors | values, folder / "weights.safetensors")

    return change


CORRUPTIONS = {
    "nothing there": shutil.rmtree,
    "weights missing": lambda folder: (folder / "weights.safetensors").unlink(),
    "config missing": lambda folder: (folder / "config.json").unlink(),
    "another algorithm": change_config(algorithm="paper"),
    "an unknown algorithm": change_config(algorithm="abacus"),
    "a tensor missing": change_tensors("normaliser.mean"),
    "a tensor of another shape": change_tensors("policy.score.weight", **{"policy.score.weight": torch.zeros(3, 3)}),
    "an exchange buffer missing": change_tensors("cost_network.exchanges.points"),
}


@pytest.mark.parametrize("corruption", sorted(CORRUPTIONS))
@pytest.mark.parametrize("kind", ["placer", "state"])
def test_a_corrupt_model_is_one_error_that_names_the_folder(kind, corruption, folder):
    if kind == "state":
        save_state(learnt(), folder)
    CORRUPTIONS[corruption](folder)
    with pytest.raises(ValueError) as error:
        {"placer": load_placer, "state": load_state}[kind](folder)
    assert str(folder) in str(error.value)
