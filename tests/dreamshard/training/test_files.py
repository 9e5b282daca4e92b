import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.training import load_placer, load_state, save_placer
from dreamshard.training.config import ALGORITHMS
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt, learnt_placer, save_state

TASK = PlacementTask(pool_of(14), 3, 2**33)


@pytest.fixture
def folder(tmp_path):
    save_placer(learnt_placer(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
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
    "another format": change_config(format=99),
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
