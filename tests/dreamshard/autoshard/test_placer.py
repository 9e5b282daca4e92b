"""A trained AutoShard: any task, within memory and constraints, the same after saving."""

import json
from dataclasses import replace

import pytest
import torch

from dreamshard import model_files
from dreamshard.autoshard import load_placer, load_state, save_placer
from dreamshard.constraints import Constraints
from dreamshard.legality import violation
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.tasks import PlacementTask
from tests.helpers.autoshard import learnt_autoshard_placer
from tests.helpers.tables import pool_of, roomy_task, tables_of, task_of
from tests.helpers.trained import learnt_placer


@pytest.fixture
def folder(tmp_path):
    save_placer(learnt_autoshard_placer(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("num_tables", "num_devices"), [(1, 1), (3, 5), (40, 7)])
def test_it_places_any_number_of_tables_on_any_number_of_devices(num_tables, num_devices):
    task, placer = roomy_task(pool_of(num_tables), num_devices), learnt_autoshard_placer()
    assert isinstance(placer, Placer)
    assert not violation(task, placer.place(task))
    assert torch.equal(placer.place(task).device, placer.place(task, budget_ms=1.0).device)


def test_where_the_policy_runs_out_of_room_tables_are_packed():
    task = task_of([6, 5, 4, 3, 2, 2, 1, 1], 3, 8)  # exactly full
    assert not violation(task, learnt_autoshard_placer().place(task))


def test_constraints_are_met():
    constraints = Constraints(
        pinned={"t0": (1,)},
        together=(frozenset({"t1", "t2"}),),
        apart=(frozenset({"t3", "t4"}),),
        excluded_devices=(2,),
    )
    task = replace(roomy_task(tables_of([10, 20, 30, 40, 50, 60]), 4), constraints=constraints)
    assert violation(task, learnt_autoshard_placer().place(task)) == ""


def test_predictions_are_of_each_devices_compute_and_zero_without_tables():
    task, placer = roomy_task(pool_of(6), 3), learnt_autoshard_placer()
    device = torch.tensor([0, 0, 0, 2, 2, 2])
    predicted = placer.predict_compute_ms(task, Placement.whole(device, 3))
    alone = PlacementTask(task.tables.select([3, 4, 5]), 1, task.memory_bytes)
    assert predicted[1] == 0
    assert predicted[2] == pytest.approx(
        float(placer.predict_compute_ms(alone, Placement.whole(torch.zeros(3, dtype=torch.int64), 1))[0])
    )


def test_a_loaded_placer_places_and_predicts_the_same(folder):
    task, loaded, before = roomy_task(pool_of(14), 3), load_placer(folder), learnt_autoshard_placer()
    placement = before.place(task)
    assert torch.equal(loaded.place(task).device, placement.device)
    assert torch.equal(loaded.predict_compute_ms(task, placement), before.predict_compute_ms(task, placement))
    assert loaded.cost_network.measured_on == before.cost_network.measured_on


def test_models_of_the_two_algorithms_are_not_read_as_each_other(folder, tmp_path):
    assert json.loads((folder / "config.json").read_text())["algorithm"] == "autoshard"
    model_files.save_placer(learnt_placer(), tmp_path / "other")
    with pytest.raises(ValueError, match="other is of 'dreamshard', not of 'autoshard'"):
        load_placer(tmp_path / "other")
    with pytest.raises(ValueError, match="of another kind"):
        model_files.load_placer(folder)
    with pytest.raises(ValueError, match="does not hold the complete model"):
        load_state(folder)
