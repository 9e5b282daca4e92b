"""Training on a tiny configuration, of any algorithm: its steps, tasks, rounds, and a state that has learned a little."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from dreamshard.costs import CostSample
from dreamshard.tasks import PlacementTask
from dreamshard.training import TRAINING_ALGORITHMS, TrainingAlgorithm, TrainingConfig, TrainingState, with_algorithm
from dreamshard.training.config import Algorithm
from tests.helpers.tables import pool_of, sample_tasks
from tests.helpers.testbeds import simulated

_SMALL = {"cost_steps": 20, "cost_batch": 8, "policy_updates": 2, "episodes": 4}
TINY = TrainingConfig(iterations=3, placements_per_iteration=4, **_SMALL)


def _of(config: TrainingConfig) -> TrainingAlgorithm:
    return TRAINING_ALGORITHMS[config.algorithm]


def start_training(pool, config: TrainingConfig, seed: int, exchanges=(), base=None) -> TrainingState:
    """The state before the first round, from an earlier placer if `base` is given."""
    return _of(config).start(pool, config, seed, exchanges, base=base)


def _by_algorithm(step: str) -> Callable[..., Any]:
    """The step of that name, of the algorithm of a state."""
    return lambda state, *given: getattr(_of(state.config), step)(state, *given)


propose, fit_costs, improve_policy = map(_by_algorithm, ("propose", "fit", "improve"))
make_placer, save_state = map(_by_algorithm, ("placer", "save"))


class Learned(NamedTuple):
    """A whole training: its state, what it measured, and CPU seconds of learning without measuring."""

    state: TrainingState
    samples: list[CostSample]
    cpu_s: float


def learn(pool, tasks, config: TrainingConfig, seed: int, testbed, *, exchanges=(), base=None, earlier=(), method=None):
    """All rounds of Algorithm 1 on a testbed, from `base` and its `earlier` samples, or by another `method`, if given."""
    method = method or _of(config)
    state, samples, cpu_s = method.start(pool, config, seed, exchanges, base=base), [], -time.process_time()
    for _ in range(config.iterations):
        proposed = method.propose(state, tasks)
        cpu_s += time.process_time()
        samples += [testbed.measure(task, placement) for task, placement in proposed]
        cpu_s -= time.process_time()
        method.fit(state, [*earlier, *samples])
        method.improve(state, tasks)
    return Learned(state, samples, cpu_s + time.process_time())


def tiny_tasks(num_devices: int = 2, seed: int = 1) -> list[PlacementTask]:
    """Four tasks of eight tables."""
    generator = torch.Generator().manual_seed(seed)
    return sample_tasks(pool_of(24), 4, 8, num_devices, 2**30, generator)


def measured(state: TrainingState, tasks: Sequence[PlacementTask]) -> list[CostSample]:
    """A round's placements, measured on the simulated testbed."""
    return [simulated().measure(task, placement) for task, placement in propose(state, tasks)]


def rounds(state: TrainingState, count: int, samples=()) -> tuple[TrainingState, list[CostSample]]:
    """The state after `count` more rounds on `tiny_tasks`, and all samples so far."""
    grown, tasks = list(samples), tiny_tasks()
    for _ in range(count):
        grown += measured(state, tasks)
        fit_costs(state, grown)
        improve_policy(state, tasks)
    return state, grown


def bits(state: TrainingState) -> dict[str, torch.Tensor]:
    """All weights of a state, and its generator's state."""
    named = {f"cost.{name}": value for name, value in state.cost_network.state_dict().items()}
    named |= {f"policy.{name}": value for name, value in state.policy.state_dict().items()}
    return named | {"generator": state.generator.get_state()}


def same(one: TrainingState, other: TrainingState) -> bool:
    """Whether two states agree to the bit."""
    return all(torch.equal(value, bits(other)[name]) for name, value in bits(one).items())


@cache
@torch.enable_grad()
def learnt(algorithm: Algorithm = "dreamshard") -> TrainingState:
    """A state after two rounds of a short run; read-only."""
    return rounds(start_training(pool_of(24), with_algorithm(TINY, algorithm), seed=0), 2)[0]


def learnt_placer(algorithm: Algorithm = "dreamshard") -> Any:
    """The placer of `learnt()`."""
    return make_placer(learnt(algorithm))
