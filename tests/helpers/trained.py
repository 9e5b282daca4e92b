"""Training on a tiny configuration: tasks, a round of Algorithm 1, and a state that has learnt a little."""

from collections.abc import Sequence
from functools import cache

import torch

from dreamshard.costs import CostSample
from dreamshard.tasks import PlacementTask, sample_tasks
from dreamshard.training import (
    TrainingConfig,
    TrainingState,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    start_training,
)
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated

TINY = TrainingConfig(
    iterations=3, placements_per_iteration=4, cost_steps=20, cost_batch=8, policy_updates=2, episodes=4
)


def tiny_tasks(num_devices: int = 2, seed: int = 1) -> list[PlacementTask]:
    """Four tasks of eight tables."""
    generator = torch.Generator().manual_seed(seed)
    return sample_tasks(pool_of(24), 4, 8, num_devices, 2**30, generator)


def run_round(state: TrainingState, tasks: Sequence[PlacementTask], samples: list[CostSample]) -> list[CostSample]:
    """One round of Algorithm 1 on the simulated testbed; returns all samples so far."""
    testbed = simulated()
    grown = [*samples, *(testbed.measure(task, placement) for task, placement in propose(state, tasks))]
    fit_costs(state, grown)
    improve_policy(state, tasks)
    return grown


@cache
@torch.enable_grad()
def learnt() -> TrainingState:
    """A state after two rounds of a short run; read-only."""
    state = start_training(pool_of(24), TINY, seed=0)
    samples: list[CostSample] = []
    for _ in range(2):
        samples = run_round(state, tiny_tasks(), samples)
    return state


def learnt_placer():
    """The placer of `learnt()`."""
    return make_placer(learnt())
