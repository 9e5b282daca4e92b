"""Costs of plans are no higher than the frozen ones, on the smallest tasks; `python -m tests.baseline` compares all."""

import json

import numpy as np
import pytest

from dreamshard.search import GreedyCostPlacer
from dreamshard.search.packing import baselines
from tests.baseline.figures import (
    DIMS,
    HERE,
    compute,
    losses,
    network_placer,
    pool,
    trained,
    training_tasks,
    true_ms,
    unseen_tasks,
)


def test_costs_of_small_tasks_are_no_higher_than_the_frozen_ones():
    frozen = json.loads((HERE / "figures.json").read_text())
    assert not list(losses(frozen, compute("20x4")))


def test_a_network_splits_tables_only_into_widths_it_measured():
    for task in unseen_tasks("dim16"):
        placement = network_placer("dim16").place(task)
        assert {sharding.sharding_type for sharding in placement.tables} == {"table_wise"}


@pytest.mark.slow
@pytest.mark.parametrize("dims", DIMS)
def test_trained_at_50x4_it_beats_greedy_and_every_rule(dims):
    """On tables it has not seen, by the true cost of the simulated testbed: on average."""
    placer = trained(pool(f"{dims}-train"), training_tasks(dims), seed=0)
    rivals = [GreedyCostPlacer(placer.cost_network, placer.normaliser), *baselines().values()]
    cost, *others = (
        np.mean([true_ms(task, contestant.place(task)) for task in unseen_tasks(dims)])
        for contestant in (placer, *rivals)
    )
    assert cost < min(others)
