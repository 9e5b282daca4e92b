"""Training on a tiny configuration, of any algorithm: tasks, rounds, a state's bits, and one that has learnt a little."""

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import torch

from dreamshard.costs import CostSample
from dreamshard.task_sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.trained import State, fit_costs, improve_policy, propose
from dreamshard.training import TrainingConfig, TrainingState, make_placer, start_training
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated

S = TypeVar("S", bound=State)

TINY = TrainingConfig(
    iterations=3, placements_per_iteration=4, cost_steps=20, cost_batch=8, policy_updates=2, episodes=4
)


def tiny_tasks(num_devices: int = 2, seed: int = 1) -> list[PlacementTask]:
    """Four tasks of eight tables."""
    generator = torch.Generator().manual_seed(seed)
    return sample_tasks(pool_of(24), 4, 8, num_devices, 2**30, generator)


def run_round(
    state: State, tasks: Sequence[PlacementTask], samples: list[CostSample], testbed: SimulatedTestbed | None = None
) -> list[CostSample]:
    """One round on the simulated testbed; returns all samples so far."""
    testbed = testbed or simulated()
    grown = [*samples, *(testbed.measure(task, placement) for task, placement in propose(state, tasks))]
    fit_costs(state, grown)
    improve_policy(state, tasks)
    return grown


def rounds(state: S, count: int, samples: Sequence[CostSample] = ()) -> tuple[S, list[CostSample]]:
    """The state after `count` more rounds on `tiny_tasks`, and all samples so far."""
    grown = list(samples)
    for _ in range(count):
        grown = run_round(state, tiny_tasks(), grown)
    return state, grown


def bits(state: State) -> dict[str, torch.Tensor]:
    """Everything that a state has learnt, and its generator's state."""
    named = {f"cost.{name}": value for name, value in state.cost_network.state_dict().items()}
    named |= {f"policy.{name}": value for name, value in state.policy.state_dict().items()}
    return named | {"generator": state.generator.get_state()}


def same(one: State, other: State) -> bool:
    """Whether two states agree to the bit."""
    return all(torch.equal(value, bits(other)[name]) for name, value in bits(one).items())


@cache
@torch.enable_grad()
def learnt() -> TrainingState:
    """A state after two rounds of a short run; read-only."""
    return rounds(start_training(pool_of(24), TINY, seed=0), 2)[0]


def learnt_placer():
    """The placer of `learnt()`."""
    return make_placer(learnt())
