"""A trained AutoShard: any task, within memory and constraints."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.placer import Placer
from dreamshard.shards import violation
from tests.helpers.tables import pool_of, roomy_task, tables_of, task_of
from tests.helpers.trained import learnt_placer


@pytest.mark.parametrize(("num_tables", "num_devices"), [(1, 1), (3, 5), (40, 7)])
def test_it_places_any_number_of_tables_on_any_number_of_devices(num_tables, num_devices):
    task, placer = roomy_task(pool_of(num_tables), num_devices), learnt_placer("autoshard")
    assert isinstance(placer, Placer)
    assert not violation(task, placer.place(task))
    assert torch.equal(placer.place(task).device, placer.place(task, budget_ms=1.0).device)


def test_where_the_policy_runs_out_of_room_tables_are_packed():
    task = task_of([6, 5, 4, 3, 2, 2, 1, 1], 3, 8)  # exactly full
    assert not violation(task, learnt_placer("autoshard").place(task))


def test_constraints_are_met():
    constraints = Constraints(
        pinned={"t0": (1,)},
        together=(frozenset({"t1", "t2"}),),
        apart=(frozenset({"t3", "t4"}),),
        excluded_devices=(2,),
    )
    task = replace(roomy_task(tables_of([10, 20, 30, 40, 50, 60]), 4), constraints=constraints)
    assert violation(task, learnt_placer("autoshard").place(task)) == ""
