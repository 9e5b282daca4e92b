"""Costs of plans are no higher than the frozen ones, on the smallest tasks; `python -m tests.baseline` compares all."""

import json

from tests.baseline.adapter import network_placer
from tests.baseline.figures import compute, losses
from tests.baseline.inputs import HERE, cases


def test_costs_of_small_tasks_are_no_higher_than_the_frozen_ones():
    frozen = json.loads((HERE / "figures.json").read_text())
    assert not list(losses(frozen, compute("20x4")))


def test_a_cost_that_rose_by_one_percent_is_a_loss():
    frozen = {"costs": {"task placer": 1.0}}
    assert len(list(losses(frozen, {"costs": {"task placer": 1.01}}))) == 1


def test_a_network_splits_tables_only_into_widths_it_measured():
    tasks = [each.task for each in cases() if each.task.name.startswith("50x4 dim16") and not each.hardware]
    for task in tasks:
        placement = network_placer("dim16").place(task)
        assert {sharding.sharding_type for sharding in placement.tables} == {"table_wise"}
