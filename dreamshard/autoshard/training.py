"""AutoShard's training in rounds: measure shards, fit the cost network, improve the policy on predicted costs, repeat.

The steps are those of `dreamshard/training.py`, so the same flows run both. The caller measures placements and saves states.
All randomness comes from the state's generator, which is saved with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dreamshard.autoshard.config import AutoShardConfig
from dreamshard.autoshard.cost_network import ComputeCostNetwork, ShardCosts, fit
from dreamshard.autoshard.episodes import episodes_of, rollout, shape_of
from dreamshard.autoshard.learning import updates
from dreamshard.autoshard.placer import AutoShardPlacer
from dreamshard.autoshard.policy_network import AutoShardPolicy
from dreamshard.autoshard.proposals import random_sets
from dreamshard.cost_model import Normaliser
from dreamshard.costs import CostSample, ExchangeSample, feasible
from dreamshard.measured_on import MeasuredOn
from dreamshard.placement import Placement
from dreamshard.policy.reinforce import UpdateFigures
from dreamshard.prediction_metrics import mean_relative_error, rank_correlation
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import CostFit, legal_proposals


@dataclass
class AutoShardState:
    """Everything a run needs to continue.

    Attributes:
        iteration: rounds completed.
        generator: the only source of randomness.
        warm: whether the run started from an earlier placer, whose predictions are good from the first round on.
    """

    config: AutoShardConfig
    iteration: int
    normaliser: Normaliser
    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    cost_optimizer: torch.optim.Optimizer
    policy_optimizer: torch.optim.Optimizer
    generator: torch.Generator
    warm: bool = False


def start_training(
    pool: Tables, config: AutoShardConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
) -> AutoShardState:
    """The state before the first round, with the normaliser of `pool`; `seed` decides everything random that follows.

    `exchanges` are ignored: AutoShard balances compute, whatever all-to-alls cost.
    """
    del exchanges
    return untrained(Normaliser.fit(pool), config, seed)


def untrained(normaliser: Normaliser, config: AutoShardConfig, seed: int) -> AutoShardState:
    """The same with a given normaliser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, policy = ComputeCostNetwork(), AutoShardPolicy()
    return AutoShardState(
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
    placer: AutoShardPlacer, config: AutoShardConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
) -> AutoShardState:
    """The state before the first round of a training that starts from a copy of an earlier placer; `exchanges` are ignored.

    The normaliser stays, since the networks were trained on features normalised by it. `config` may be by
    `AutoShardConfig.warm`.
    """
    del exchanges
    state = untrained(placer.normaliser, config, seed)
    state.cost_network.load_state_dict(placer.cost_network.state_dict())
    state.cost_network.measured_on = placer.cost_network.measured_on
    state.policy.load_state_dict(placer.policy.state_dict())
    state.warm = True
    return state


def propose(state: AutoShardState, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
    """This round's placements to measure: random sets of tables of one of `tasks`, or one of them placed by the policy.

    A task of random sets is called after its own task, with the round and a number, and holds some of its tables.

    Raises:
        NoPlacementError: too few of eight times as many draws are legal.
    """
    config, generator = state.config, state.generator

    def draw(task: PlacementTask, number: int) -> tuple[PlacementTask, Placement]:
        if config.random_sets and number % round(1 / config.random_sets) == 0:
            return random_sets(task, f"{task.name}.{state.iteration + 1}.{number}", generator)
        episodes = episodes_of([task], state.cost_network, state.normaliser)
        taken = rollout(state.policy, state.cost_network, episodes, generator)
        return task, Placement.whole(taken.device[0], task.num_devices)

    return legal_proposals(tasks, config.placements_per_iteration, draw, generator)


def fit_costs(state: AutoShardState, samples: Sequence[CostSample]) -> CostFit:
    """Fit the state's cost network to the shards of all rounds, of which the last `placements_per_iteration` are new.

    The errors are of each device's compute. Placements that did not fit their devices do not count.

    Raises:
        ValueError: no placement fit its devices.
        TrainingDivergedError: the loss is not finite.
    """
    config, network = state.config, state.cost_network
    remaining = max(1 - state.iteration / config.iterations, 0.05)
    state.cost_optimizer.param_groups[0]["lr"] = config.cost_learning_rate * remaining
    state.policy_optimizer.param_groups[0]["lr"] = config.policy_learning_rate * remaining
    fitted = feasible(samples)
    data = ShardCosts.of(fitted, state.normaliser)
    if network.measured_on is None:
        network.measured_on = MeasuredOn.of(fitted[-1])
        network.unit_ms.fill_(float(data.compute_ms.mean().clamp(min=1e-9)))
    fresh = feasible(samples[-config.placements_per_iteration :])
    first = state.iteration == 0 and not state.warm
    errors = (None, None) if first or not fresh else _errors(network, ShardCosts.of(fresh, state.normaliser))
    loss = fit(
        network,
        state.cost_optimizer,
        data,
        steps=config.cost_steps,
        batch=config.cost_batch,
        max_norm=config.max_gradient_norm,
        generator=state.generator,
    )
    return CostFit(loss, *errors)


@torch.no_grad()
def _errors(network: ComputeCostNetwork, data: ShardCosts) -> tuple[float, float]:
    """Mean relative error and rank correlation of the shards' compute; a correlation that is not defined counts as 0."""
    predicted, measured = data.predicted_ms(network).numpy(), data.compute_ms.numpy()
    rank = rank_correlation(predicted, measured)
    return mean_relative_error(predicted, measured), rank if rank == rank else 0.0


def improve_policy(state: AutoShardState, tasks: Sequence[PlacementTask]) -> UpdateFigures:
    """Update the policy on predicted costs and complete the round; returns the means over the updates.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    config, generator = state.config, state.generator
    by_shape = {
        shape: episodes_of([task for task in tasks if shape_of(task) == shape], state.cost_network, state.normaliser)
        for shape in {shape_of(task) for task in tasks}
    }
    figures: list[UpdateFigures] = []
    while len(figures) < config.policy_updates:
        count = min(config.updates_per_behaviour, config.policy_updates - len(figures))
        alike = by_shape[shape_of(tasks[int(torch.randint(len(tasks), (), generator=generator))])]
        drawn = torch.randint(len(alike.order), (count * config.episodes,), generator=generator)
        figures += updates(state.policy, state.policy_optimizer, state.cost_network, alike[drawn], config, generator)
    state.iteration += 1
    return UpdateFigures(*(sum(values) / len(figures) for values in zip(*figures, strict=True)))


def make_placer(state: AutoShardState) -> AutoShardPlacer:
    """The placer that the state has learnt so far."""
    return AutoShardPlacer(state.cost_network, state.policy, state.normaliser)
