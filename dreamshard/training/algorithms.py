"""The algorithms that can be trained, by name.

- `dreamshard`: this project's cost network, and its search.
- `paper`: DreamShard as published (arXiv 2210.02023): the paper's networks, and placements by the greedy policy alone.
- `autoshard`: AutoShard as published (arXiv 2208.06399).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from dreamshard.autoshard import AutoShardPlacer, AutoShardPolicy, ComputeCostNetwork, actor_critic_updates
from dreamshard.autoshard.episodes import Episodes, random_sets, rollout, shape_of
from dreamshard.cost_model import CostNetwork, Normaliser, PaperCostNetwork, StructuredCostNetwork
from dreamshard.files.foreign import InputError
from dreamshard.names import Algorithm
from dreamshard.placement import Placement
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episode, PolicyNetwork
from dreamshard.policy.reinforce import UpdateFigures, update
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training.algorithm import Proposal, TrainedPlacer, TrainingAlgorithm, TrainingState, drawn
from dreamshard.training.files import read_config

_UNBALANCED_SPREAD = 1.7  # of the logarithm of a device's share of tables, in exploration
_UPDATES, _PER_BEHAVIOUR = 3, 2  # AutoShard's: policy updates per one of DreamShard, and on rollouts of one policy


class DreamShard(TrainingAlgorithm):
    """Algorithm 1 of the paper with the structured cost network; placers search."""

    name: ClassVar[Algorithm] = "dreamshard"
    uses_exchanges = True

    def networks(self, normaliser: Normaliser) -> tuple[CostNetwork, PolicyNetwork]:
        """See `TrainingAlgorithm`."""
        return StructuredCostNetwork(normaliser), PolicyNetwork()

    def draw(self, state: TrainingState, task: PlacementTask, number: int) -> Proposal:
        """Sample the policy, or unbalance the devices at random."""
        exploration, generator = state.config.exploration, state.generator
        if exploration and number % round(1 / exploration) == 0:
            return task, _unbalanced(task, generator)
        episode = Episode.of(task, state.cost_network, state.normaliser)
        return task, Placement.whole(mdp.rollout(state.policy, episode, 1, generator).device[0], task.num_devices)

    def updates(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> list[UpdateFigures]:
        """REINFORCE on the estimated MDP, each update on one task."""
        config, found = state.config, []
        for _ in range(config.policy_updates):
            episode = Episode.of(drawn(tasks, state.generator), state.cost_network, state.normaliser)
            figures = update(
                state.policy,
                state.policy_optimizer,
                episode,
                config.episodes,
                config.entropy_weight,
                state.generator,
            )
            found.append(figures)
        return found

    def made(
        self, network: CostNetwork, policy: PolicyNetwork, normaliser: Normaliser, budget_ms: float | None = None
    ) -> DreamShardPlacer:
        """See `TrainingAlgorithm`."""
        return DreamShardPlacer(network, policy, normaliser, budget_ms=budget_ms)


class Paper(DreamShard):
    """DreamShard as published; placers place by the policy alone."""

    name: ClassVar[Algorithm] = "paper"
    uses_exchanges = False
    least_rate = 0.0

    def normaliser(self, pool: Tables) -> Normaliser:
        """As published, each task has its own."""
        return Normaliser.per_task()

    def networks(self, normaliser: Normaliser) -> tuple[CostNetwork, PolicyNetwork]:
        """See `TrainingAlgorithm`."""
        return PaperCostNetwork(), PolicyNetwork()

    def made(
        self, network: CostNetwork, policy: PolicyNetwork, normaliser: Normaliser, budget_ms: float | None = None
    ) -> DreamShardPlacer:
        """See `TrainingAlgorithm`."""
        return DreamShardPlacer(network, policy, normaliser, inference="policy")


class AutoShard(TrainingAlgorithm):
    """Placers balance compute, whatever all-to-alls cost."""

    name: ClassVar[Algorithm] = "autoshard"

    def networks(self, normaliser: Normaliser) -> tuple[CostNetwork, AutoShardPolicy]:
        """See `TrainingAlgorithm`."""
        return ComputeCostNetwork(), AutoShardPolicy()

    def draw(self, state: TrainingState, task: PlacementTask, number: int) -> Proposal:
        """Sample the policy, or draw random sets of tables.

        A task of random sets is called after its own task, with the round and a number, and holds some of its tables.
        """
        exploration, generator, network = state.config.exploration, state.generator, state.cost_network
        if exploration and number % round(1 / exploration) == 0:
            return random_sets(task, f"{task.name}.{state.iteration + 1}.{number}", generator)
        taken = rollout(state.policy, network, Episodes.of([task], network, state.normaliser), generator)
        return task, Placement.whole(taken.device[0], task.num_devices)

    def updates(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> list[UpdateFigures]:
        """Actor-critic on tasks of one shape at a time; two updates on rollouts of one policy, corrected by V-trace."""
        config, generator = state.config, state.generator
        by_shape = {
            shape: Episodes.of(
                [task for task in tasks if shape_of(task) == shape], state.cost_network, state.normaliser
            )
            for shape in {shape_of(task) for task in tasks}
        }
        figures: list[UpdateFigures] = []
        while len(figures) < _UPDATES * config.policy_updates:
            count = min(_PER_BEHAVIOUR, _UPDATES * config.policy_updates - len(figures))
            alike = by_shape[shape_of(drawn(tasks, generator))]
            chosen = torch.randint(len(alike.order), (count * config.episodes,), generator=generator)
            figures += actor_critic_updates(
                state.policy,
                state.policy_optimizer,
                state.cost_network,
                alike[chosen],
                config.episodes,
                config.entropy_weight,
                generator,
            )
        return figures

    def made(
        self, network: Any, policy: Any, normaliser: Normaliser, budget_ms: float | None = None
    ) -> AutoShardPlacer:
        """See `TrainingAlgorithm`."""
        return AutoShardPlacer(network, policy, normaliser)


TRAINING_ALGORITHMS: dict[str, TrainingAlgorithm] = {
    algorithm.name: algorithm for algorithm in (DreamShard(), Paper(), AutoShard())
}


def save_placer(placer: TrainedPlacer, folder: Path) -> None:
    """Write a placer as `folder`, replacing any earlier one."""
    TRAINING_ALGORITHMS[placer.name].save_placer(placer, folder)


def load_placer(folder: Path) -> TrainedPlacer:
    """The placer in a folder, of any algorithm; raises ValueError if there is none."""
    return _algorithm_of(folder).load_placer(folder)


def load_state(folder: Path) -> TrainingState:
    """The training state in a folder, of any algorithm; raises ValueError if there is none."""
    return _algorithm_of(folder).load(folder)


def _algorithm_of(folder: Path) -> TrainingAlgorithm:
    name = str(read_config(folder).get("algorithm"))
    if name not in TRAINING_ALGORITHMS:
        raise InputError(
            f"the model in {folder} is of algorithm {name!r}; there are {', '.join(TRAINING_ALGORITHMS)}: train it again"
        )
    return TRAINING_ALGORITHMS[name]


def _unbalanced(task: PlacementTask, generator: torch.Generator) -> Placement:
    """A placement with very different numbers of tables per device, not necessarily legal.

    A policy balances, so its shards are all of one size; a cost network fitted to those alone errs by 4 % on tasks with
    fewer tables per device. Weights of devices are log-normal, so that shards of 1 to nearly all tables occur.
    """
    weights = (_UNBALANCED_SPREAD * torch.randn(task.num_devices, generator=generator)).exp()
    return Placement.whole(
        torch.multinomial(weights, len(task.tables), replacement=True, generator=generator), task.num_devices
    )
