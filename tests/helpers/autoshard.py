"""AutoShard trained on a tiny configuration."""

from collections.abc import Sequence
from functools import cache

import torch

from dreamshard.autoshard import (
    AutoShardConfig,
    AutoShardState,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    start_training,
)
from dreamshard.costs import CostSample
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import tiny_tasks

TINY_AUTOSHARD = AutoShardConfig(
    iterations=3,
    placements_per_iteration=4,
    cost_steps=20,
    cost_batch=16,
    policy_updates=3,
    updates_per_behaviour=2,
    episodes=6,
)


def autoshard_round(
    state: AutoShardState, tasks: Sequence[PlacementTask], samples: list[CostSample]
) -> list[CostSample]:
    """One round on the simulated testbed; returns all samples so far."""
    testbed = simulated()
    grown = [*samples, *(testbed.measure(task, placement) for task, placement in propose(state, tasks))]
    fit_costs(state, grown)
    improve_policy(state, tasks)
    return grown


@cache
@torch.enable_grad()
def learnt_autoshard() -> AutoShardState:
    """A state after two rounds of a short run; read-only."""
    state = start_training(pool_of(24), TINY_AUTOSHARD, seed=0)
    samples: list[CostSample] = []
    for _ in range(2):
        samples = autoshard_round(state, tiny_tasks(), samples)
    return state


def learnt_autoshard_placer():
    """The placer of `learnt_autoshard()`."""
    return make_placer(learnt_autoshard())
