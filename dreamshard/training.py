"""Algorithm 1 of DreamShard: measure placements drawn from the policy, fit the cost network, improve the policy, repeat.

The caller measures placements and saves states. All randomness comes from the state's generator, which is saved with it,
so an interrupted run ends with the same bits as an uninterrupted one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.cost_model import (
    Architecture,
    CostData,
    CostNetwork,
    Normaliser,
    fit,
    new_cost_network,
    prediction_error,
)
from dreamshard.costs import CostSample, feasible
from dreamshard.formatting import gib
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import episodes_of
from dreamshard.policy.network import PolicyKind, PolicyNetwork
from dreamshard.policy.reinforce import UpdateFigures, update
from dreamshard.policy.rollout import rollout
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

_UNBALANCED_SPREAD = 1.7  # of the logarithm of a device's share of tables, in exploration
_DRAWS_PER_PLACEMENT = 8  # before too few legal placements are an error


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of Algorithm 1 (appendix B.5 of the paper), and those that this implementation adds.

    Attributes:
        iterations: rounds of measuring and learning.
        placements_per_iteration: placements measured per round.
        cost_steps: optimizer steps of the cost network per round.
        cost_batch: samples per step.
        policy_updates: optimizer steps of the policy per round.
        episodes: rollouts per policy update.
        entropy_weight: weight of the entropy bonus.
        exploration: share of the placements that are unbalanced at random instead of drawn from the policy, rounded to one
            in a whole number of placements. The paper has 0.
        cost_network: `structured`, or `paper` for DreamShard's own.
        policy: `lookahead`, or `paper` for DreamShard's own.
        cost_learning_rate: initial learning rate of the cost network; falls linearly to a twentieth over the run.
        policy_learning_rate: the same for the policy.
        warm_iterations: rounds of a training that starts from an earlier placer.
        warm_rate: initial learning rates of such a training, as a share of those above.
    """

    iterations: int = 10
    placements_per_iteration: int = 10
    cost_steps: int = 300
    cost_batch: int = 64
    policy_updates: int = 10
    episodes: int = 10
    entropy_weight: float = 0.001
    exploration: float = 0.5
    cost_network: Architecture = "structured"
    policy: PolicyKind = "lookahead"
    cost_learning_rate: float = 1e-2
    policy_learning_rate: float = 1e-3
    warm_iterations: int = 3
    warm_rate: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            zero_allowed = field.name in ("entropy_weight", "exploration")
            if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
                raise ValueError(f"{field.name} is {value}, but training needs a number above 0; correct it")
        if self.exploration > 1:
            raise ValueError(f"exploration is {self.exploration}, but it is a share of the placements; give 0 to 1")

    @property
    def measurements(self) -> int:
        """Placements measured in all rounds together."""
        return self.iterations * self.placements_per_iteration

    def warm(self) -> "TrainingConfig":
        """The settings of a training that starts from an earlier placer: fewer rounds, lower learning rates."""
        return replace(
            self,
            iterations=min(self.warm_iterations, self.iterations),
            cost_learning_rate=self.warm_rate * self.cost_learning_rate,
            policy_learning_rate=self.warm_rate * self.policy_learning_rate,
        )


@dataclass
class TrainingState:
    """Everything a run needs to continue.

    Attributes:
        config: settings of the run.
        iteration: rounds completed.
        normaliser: fitted on the training pool.
        cost_network: predicts costs.
        policy: places tables.
        cost_optimizer: of the cost network.
        policy_optimizer: of the policy.
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
    """Figures of one round's fit.

    Attributes:
        loss: mean training loss.
        heldout_mape: relative error on the round's new placements before the fit; None in the first round, unless the
            training started from an earlier placer.
        heldout_spearman: rank correlation on the same placements, or None.
    """

    loss: float
    heldout_mape: float | None
    heldout_spearman: float | None


def start_training(pool: Tables, config: TrainingConfig, seed: int) -> TrainingState:
    """Untrained networks and the normaliser of `pool`; `seed` decides everything random that follows."""
    return untrained(Normaliser.fit(pool), config, seed)


def untrained(normaliser: Normaliser, config: TrainingConfig, seed: int) -> TrainingState:
    """The state before the first round, with a given normaliser."""
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


def continue_from(placer: DreamShardPlacer, config: TrainingConfig, seed: int) -> TrainingState:
    """The state before the first round of a training that starts from an earlier placer.

    The placer's normaliser stays, since its networks were trained on features normalised by it.

    Args:
        placer: is copied, not changed.
        config: of the rounds to come; see `TrainingConfig.warm`.
        seed: decides everything random that follows.

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
    state.policy.load_state_dict(placer.policy.state_dict())
    state.warm = True
    return state


def propose(state: TrainingState, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
    """This round's placements to measure, each on a task drawn from `tasks`.

    Raises:
        NoPlacementError: too few of eight times as many draws are legal.
    """
    proposals: list[tuple[PlacementTask, Placement]] = []
    draws = 0
    while len(proposals) < state.config.placements_per_iteration:
        task = tasks[int(torch.randint(len(tasks), (), generator=state.generator))]
        explore = draws % round(1 / state.config.exploration) == 0 if state.config.exploration else False
        device = _unbalanced(task, state.generator) if explore else _sampled_from_policy(state, task)
        draws += 1
        if task.is_legal(placement := Placement(device, task.num_devices)):
            proposals.append((task, placement))
        most_draws = _DRAWS_PER_PLACEMENT * state.config.placements_per_iteration
        if draws >= most_draws and len(proposals) < state.config.placements_per_iteration:
            raise NoPlacementError(
                f"only {len(proposals)} of {draws} sampled placements fit the devices, so there is too little to learn "
                f"from; give the devices of the tasks more than {gib(tasks[0].memory_bytes)}"
            )
    return proposals


def _sampled_from_policy(state: TrainingState, task: PlacementTask) -> Int[Tensor, " T"]:
    episodes = episodes_of([task], state.cost_network, state.normaliser)
    return rollout(state.policy, state.cost_network, episodes, state.generator).device[0]


def _unbalanced(task: PlacementTask, generator: torch.Generator) -> Int[Tensor, " T"]:
    """A placement with very different numbers of tables per device, not necessarily legal.

    A policy balances, so its shards are all of one size; a cost network fitted to those alone errs by 4 % on tasks with
    fewer tables per device. Weights of devices are log-normal, so that shards of 1 to nearly all tables occur.
    """
    weights = (_UNBALANCED_SPREAD * torch.randn(task.num_devices, generator=generator)).exp()
    return torch.multinomial(weights, len(task.tables), replacement=True, generator=generator)


def fit_costs(state: TrainingState, samples: Sequence[CostSample]) -> CostFit:
    """Fit the cost network to all samples so far, without those of placements that did not fit their devices.

    Args:
        state: is updated in place.
        samples: of all rounds; the last `placements_per_iteration` are this round's.

    Raises:
        ValueError: no placement fit its devices.
        TrainingDivergedError: the loss is not finite.
    """
    config, network = state.config, state.cost_network
    _decay_learning_rates(state)
    data = CostData.of(feasible(samples), state.normaliser)
    fresh = feasible(samples[-config.placements_per_iteration :])
    held_out = None
    if (state.warm or state.iteration > 0) and fresh:
        held_out = prediction_error(network, CostData.of(fresh, state.normaliser))
    network.prepare(data, first=state.iteration == 0 and not state.warm)
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
    updates: list[UpdateFigures] = []
    for _ in range(state.config.policy_updates):
        task = tasks[int(torch.randint(len(tasks), (), generator=state.generator))]
        episodes = episodes_of([task], state.cost_network, state.normaliser).repeat(state.config.episodes)
        updates.append(
            update(
                state.policy,
                state.policy_optimizer,
                state.cost_network,
                episodes,
                entropy_weight=state.config.entropy_weight,
                generator=state.generator,
            )
        )
    state.iteration += 1
    means = (sum(getattr(figures, field.name) for figures in updates) / len(updates) for field in fields(UpdateFigures))
    return UpdateFigures(*means)


def make_placer(state: TrainingState) -> DreamShardPlacer:
    """The placer that the state has learnt so far."""
    return DreamShardPlacer(state.cost_network, state.policy, state.normaliser)


def _decay_learning_rates(state: TrainingState) -> None:
    """Linear decay over the rounds, down to a twentieth."""
    config, factor = state.config, max(1 - state.iteration / state.config.iterations, 0.05)
    for optimizer, initial in (
        (state.cost_optimizer, config.cost_learning_rate),
        (state.policy_optimizer, config.policy_learning_rate),
    ):
        for group in optimizer.param_groups:
            group["lr"] = initial * factor
