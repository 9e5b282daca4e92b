"""Algorithm 1 of DreamShard: measure placements drawn from the policy, fit the cost network, improve the policy, repeat.

The caller measures placements and saves states. All randomness comes from the state's generator, which is saved with it,
so an interrupted run ends with the same bits as an uninterrupted one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.algorithms import TrainingConfig as TrainingConfig
from dreamshard.cost_model import (
    CostData,
    CostNetwork,
    Normaliser,
    fit,
    new_cost_network,
    prediction_error,
)
from dreamshard.costs import CostSample, ExchangeSample, feasible
from dreamshard.formatting import gib
from dreamshard.legality import violation
from dreamshard.measured_on import MeasuredOn
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import episodes_of
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.policy.reinforce import UpdateFigures, update
from dreamshard.policy.rollout import rollout
from dreamshard.search import DreamShardPlacer, Inference
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

_UNBALANCED_SPREAD = 1.7  # of the logarithm of a device's share of tables, in exploration
_LEAST_RATE = 0.05  # of the initial learning rates
_DRAWS_PER_PLACEMENT = 8  # before too few legal placements are an error


@dataclass
class TrainingState:
    """Everything a run needs to continue.

    Attributes:
        iteration: rounds completed.
        generator: the only source of randomness.
        warm: whether the run started from an earlier placer, whose predictions are good from the first round on.
    """

    config: TrainingConfig
    iteration: int
    normaliser: Normaliser
    cost_network: CostNetwork
    policy: PolicyNetwork
    cost_optimizer: torch.optim.Optimizer
    policy_optimizer: torch.optim.Optimizer
    generator: torch.Generator
    warm: bool = False


@dataclass(frozen=True)
class CostFit:
    """Mean loss of one round's fit, and errors on its new placements before it, None in the first round of a cold start."""

    loss: float
    heldout_mape: float | None
    heldout_spearman: float | None


def start_training(
    pool: Tables, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
) -> TrainingState:
    """The state before the first round, with the normaliser of `pool`, or with the one that `paper` has for any tables.

    `seed` decides everything random that follows.

    `exchanges` are all-to-alls measured on the hardware by themselves: with them the placer serves other numbers of devices
    than those of the measured placements.
    """
    normaliser = Normaliser.per_task() if config.algorithm == "paper" else Normaliser.fit(pool)
    state = untrained(normaliser, config, seed)
    state.cost_network.learn_exchanges(exchanges)
    return state


def untrained(normaliser: Normaliser, config: TrainingConfig, seed: int) -> TrainingState:
    """The same with a given normaliser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = new_cost_network(config.cost_network, normaliser)
        policy = PolicyNetwork(config.policy)
    return TrainingState(
        config,
        0,
        normaliser,
        network,
        policy,
        torch.optim.Adam(network.parameters(), lr=config.cost_learning_rate, fused=True),
        torch.optim.Adam(policy.parameters(), lr=config.policy_learning_rate, fused=True),
        torch.Generator().manual_seed(seed),
    )


def continue_from(
    placer: DreamShardPlacer, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
) -> TrainingState:
    """The state before the first round of a training that starts from a copy of an earlier placer.

    The normaliser stays, since the networks were trained on features normalised by it. `config` may be by
    `TrainingConfig.warm`. `exchanges`, if any, replace those that the placer knows.

    Raises:
        ValueError: the placer's networks are of another kind than those of `config`.
    """
    kinds = (placer.cost_network.architecture, placer.policy.kind)
    if kinds != (config.cost_network, config.policy):
        raise ValueError(
            f"the placer's networks are {kinds[0]!r} and {kinds[1]!r}, but the training needs {config.cost_network!r} and "
            f"{config.policy!r}, so it cannot start from this placer; start without one"
        )
    state = untrained(placer.normaliser, config, seed)
    state.cost_network.load_state_dict(placer.cost_network.state_dict())
    state.cost_network.measured_on = placer.cost_network.measured_on
    state.policy.load_state_dict(placer.policy.state_dict())
    state.warm = True
    if exchanges:
        state.cost_network.learn_exchanges(exchanges)
    return state


def propose(state: TrainingState, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
    """This round's placements to measure, each on a task drawn from `tasks`.

    Raises:
        NoPlacementError: too few of eight times as many draws are legal.
    """
    config, generator = state.config, state.generator

    def draw(task: PlacementTask, number: int) -> tuple[PlacementTask, Placement]:
        if config.exploration and number % round(1 / config.exploration) == 0:
            device = _unbalanced(task, generator)
        else:
            network = state.cost_network.for_task(task)
            episodes = episodes_of([task], network, state.normaliser)
            device = rollout(state.policy, network, episodes, generator).device[0]
        return task, Placement.whole(device, task.num_devices)

    return legal_proposals(tasks, config.placements_per_iteration, draw, generator)


def legal_proposals(
    tasks: Sequence[PlacementTask],
    count: int,
    draw: Callable[[PlacementTask, int], tuple[PlacementTask, Placement]],
    generator: torch.Generator,
) -> list[tuple[PlacementTask, Placement]]:
    """The first `count` legal placements among those that are drawn.

    Args:
        draw: a placement, given a task drawn from `tasks` and the number of the draw; it may be of a part of the task.

    Raises:
        NoPlacementError: too few of eight times as many draws are legal.
    """
    proposals: list[tuple[PlacementTask, Placement]] = []
    most_draws = _DRAWS_PER_PLACEMENT * count
    for number in range(most_draws):
        task, placement = draw(drawn(tasks, generator), number)
        if not violation(task, placement):
            proposals.append((task, placement))
        if len(proposals) == count:
            return proposals
    raise NoPlacementError(
        f"only {len(proposals)} of {most_draws} sampled placements fit the devices, so there is too little to learn "
        f"from; give the devices of the tasks more than {gib(tasks[0].memory_bytes)}"
    )


def drawn(tasks: Sequence[PlacementTask], generator: torch.Generator) -> PlacementTask:
    """One of the tasks, all equally likely."""
    return tasks[int(torch.randint(len(tasks), (), generator=generator))]


def _unbalanced(task: PlacementTask, generator: torch.Generator) -> Int[Tensor, " T"]:
    """A placement with very different numbers of tables per device, not necessarily legal.

    A policy balances, so its shards are all of one size; a cost network fitted to those alone errs by 4 % on tasks with
    fewer tables per device. Weights of devices are log-normal, so that shards of 1 to nearly all tables occur.
    """
    weights = (_UNBALANCED_SPREAD * torch.randn(task.num_devices, generator=generator)).exp()
    return torch.multinomial(weights, len(task.tables), replacement=True, generator=generator)


def set_learning_rates(state: TrainingState) -> None:
    """The rates of the state's round."""
    config = state.config
    least = 0 if config.algorithm == "paper" else _LEAST_RATE
    remaining = max(1 - state.iteration / config.iterations, least)
    state.cost_optimizer.param_groups[0]["lr"] = config.cost_learning_rate * remaining
    state.policy_optimizer.param_groups[0]["lr"] = config.policy_learning_rate * remaining


def fit_costs(state: TrainingState, samples: Sequence[CostSample]) -> CostFit:
    """Fit the state's cost network to the samples of all rounds, of which the last `placements_per_iteration` are new.

    Placements that did not fit their devices do not count.

    Raises:
        ValueError: no placement fit its devices.
        TrainingDivergedError: the loss is not finite.
    """
    config, network = state.config, state.cost_network
    set_learning_rates(state)
    fitted = feasible(samples)
    if network.measured_on is None and fitted:
        network.measured_on = MeasuredOn.of(fitted[-1])
    setting = network.measured_on.setting if network.measured_on else None
    data = CostData.of(fitted, state.normaliser, setting)
    fresh = feasible(samples[-config.placements_per_iteration :])
    first = state.iteration == 0 and not state.warm
    held_out = None if first or not fresh else prediction_error(network, CostData.of(fresh, state.normaliser, setting))
    network.prepare(data, first=first)
    loss = fit(
        network,
        state.cost_optimizer,
        data,
        steps=config.cost_steps,
        batch=config.cost_batch,
        generator=state.generator,
    )
    return CostFit(loss, held_out.mape if held_out else None, held_out.spearman if held_out else None)


def improve_policy(state: TrainingState, tasks: Sequence[PlacementTask]) -> UpdateFigures:
    """Update the policy on the estimated MDP and complete the round; returns the means over the updates.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    config, generator = state.config, state.generator
    policy, optimizer, updates = state.policy, state.policy_optimizer, []
    for _ in range(config.policy_updates):
        task = drawn(tasks, generator)
        network = state.cost_network.for_task(task)
        episodes = episodes_of([task], network, state.normaliser).repeat(config.episodes)
        updates.append(update(policy, optimizer, network, episodes, config.entropy_weight, generator))
    state.iteration += 1
    return UpdateFigures(*(sum(values) / len(updates) for values in zip(*updates, strict=True)))


def make_placer(state: TrainingState) -> DreamShardPlacer:
    """The placer that the state has learned so far; `paper` places by the policy alone."""
    inference: Inference = "policy" if state.config.algorithm == "paper" else "search"
    return DreamShardPlacer(state.cost_network, state.policy, state.normaliser, inference=inference)
