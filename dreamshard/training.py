"""Algorithm 1 of DreamShard: measure placements drawn from the policy, fit the cost network, improve the policy; again.

Pure: whoever calls decides where placements are measured and where states are kept. All randomness comes from the
state's generator, which is saved with it, so a run that was interrupted ends with the same bits as one that was not.
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
from dreamshard.policy.reinforce import update
from dreamshard.policy.rollout import rollout
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

_LOPSIDED = 1.7  # spread of the logarithm of a device's share of tables, in exploration


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Algorithm 1's figures (appendix B.5 of the paper) and what this implementation adds.

    Attributes:
        iterations: rounds of measuring and learning.
        placements_per_iteration: measured per round.
        cost_steps: optimizer steps of the cost network per round.
        cost_batch: samples per step.
        policy_updates: per round.
        episodes: rollouts per policy update.
        entropy_weight: of the entropy bonus.
        exploration: share of the placements that is not drawn from the policy but lopsided on purpose; one in a whole
            number of placements. 0 is the paper's.
        cost_network: `structured`, or `paper` for DreamShard's own.
        policy: `lookahead`, or `paper` for DreamShard's own.
        cost_learning_rate: at the start; falls linearly to a twentieth over the run.
        policy_learning_rate: the same.
        warm_iterations: rounds of a training that starts from an earlier placer instead of from nothing.
        warm_rate: its learning rates at the start, as a share of those above.
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
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                continue
            if (
                not math.isfinite(value)
                or value < 0
                or (value == 0 and each.name not in ("entropy_weight", "exploration"))
            ):
                raise ValueError(f"{each.name} is {value}, but training needs a number above 0; correct it")
        if self.exploration > 1:
            raise ValueError(f"exploration is {self.exploration}, but it is a share of the placements; give 0 to 1")

    @property
    def measurements(self) -> int:
        """Placements measured in all rounds together."""
        return self.iterations * self.placements_per_iteration

    def warm(self) -> "TrainingConfig":
        """What of this remains to be done where training starts from an earlier placer."""
        return replace(
            self,
            iterations=min(self.warm_iterations, self.iterations),
            cost_learning_rate=self.warm_rate * self.cost_learning_rate,
            policy_learning_rate=self.warm_rate * self.policy_learning_rate,
        )


@dataclass
class TrainingState:
    """Everything a run needs to go on.

    Attributes:
        config: of the run.
        iteration: rounds completed.
        normaliser: fitted on the training pool.
        generator: the only source of randomness.
        warm: whether it started from an earlier placer, whose predictions are good from the first round on.
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
        heldout_mape: relative error on the round's new placements, of training tables, before anything was fitted to
            them; None in the first round of a training that starts from nothing.
        heldout_spearman: rank correlation there; None in that round too.
    """

    loss: float
    heldout_mape: float | None
    heldout_spearman: float | None


@dataclass(frozen=True)
class PolicyUpdate:
    """Figures of one round's policy updates: means over the updates; see `train_policy.UpdateFigures`."""

    loss: float
    reward: float
    entropy: float


def start_training(pool: Tables, config: TrainingConfig, seed: int) -> TrainingState:
    """Untrained networks and the normaliser of `pool`; `seed` decides everything random that follows."""
    return untrained(Normaliser.fit(pool), config, seed)


def untrained(normaliser: Normaliser, config: TrainingConfig, seed: int) -> TrainingState:
    """The state before the first round."""
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
    """The state before the first round where training goes on from what an earlier placer has learnt.

    Its normaliser stays: the networks know tables by it alone.

    Args:
        placer: is copied, not changed.
        config: of the rounds to come; see `TrainingConfig.warm`.
        seed: decides everything random that follows.

    Raises:
        ValueError: the placer's networks are of another kind than `config` asks for.
    """
    kinds = (placer.cost_network.architecture, placer.policy.kind)
    if kinds != (config.cost_network, config.policy):
        raise ValueError(
            f"its networks are {kinds[0]!r} and {kinds[1]!r}, but {config.cost_network!r} and {config.policy!r} are "
            "asked for, so training cannot go on from it; start from nothing"
        )
    state = untrained(placer.normaliser, config, seed)
    state.cost_network.load_state_dict(placer.cost_network.state_dict())
    state.policy.load_state_dict(placer.policy.state_dict())
    state.warm = True
    return state


def propose(state: TrainingState, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
    """This round's placements to measure, each on a task drawn from `tasks`.

    Raises:
        NoPlacementError: eight times as many draws leave too few that fit.
    """
    proposals: list[tuple[PlacementTask, Placement]] = []
    draws = 0
    while len(proposals) < state.config.placements_per_iteration:
        task = tasks[int(torch.randint(len(tasks), (), generator=state.generator))]
        explore = draws % round(1 / state.config.exploration) == 0 if state.config.exploration else False
        device = _lopsided(task, state.generator) if explore else _drawn(state, task)
        draws += 1
        if task.is_legal(placement := Placement(device, task.num_devices)):
            proposals.append((task, placement))
        if draws >= 8 * state.config.placements_per_iteration > 8 * len(proposals):
            raise NoPlacementError(
                f"the policy found room in only {len(proposals)} of {draws} placements, so there is too little to "
                f"learn from; give the devices of the tasks more than {gib(tasks[0].memory_bytes)}"
            )
    return proposals


def _drawn(state: TrainingState, task: PlacementTask) -> Int[Tensor, " T"]:
    """A placement drawn from the policy."""
    episodes = episodes_of([task], state.cost_network, state.normaliser)
    return rollout(state.policy, state.cost_network, episodes, state.generator).device[0]


def _lopsided(task: PlacementTask, generator: torch.Generator) -> Int[Tensor, " T"]:
    """A placement with devices of very different numbers of tables, legal where luck has it.

    A policy balances, so all shards it proposes are of one size; a cost network fitted to those alone errs by 4 % on
    tasks with fewer tables per device. Weights of devices are log-normal, so shards of 1 to nearly all tables occur.
    """
    weights = (_LOPSIDED * torch.randn(task.num_devices, generator=generator)).exp()
    return torch.multinomial(weights, len(task.tables), replacement=True, generator=generator)


def fit_costs(state: TrainingState, samples: Sequence[CostSample]) -> CostFit:
    """Fit the cost network to all samples so far, earlier ones first; the last `placements_per_iteration` are this round's.

    Placements that did not fit their devices teach nothing and are left out.

    Raises:
        ValueError: no placement did fit.
        TrainingDivergedError: the loss is not finite.
    """
    config, network = state.config, state.cost_network
    _decay(state)
    data = CostData.of(feasible(samples), state.normaliser)
    fresh = feasible(samples[-config.placements_per_iteration :])
    held_out = None
    if (state.warm or state.iteration > 0) and fresh:  # before anything is fitted to them
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


def improve_policy(state: TrainingState, tasks: Sequence[PlacementTask]) -> PolicyUpdate:
    """This round's policy updates on the estimated MDP; completes the round.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    figures = []
    for _ in range(state.config.policy_updates):
        task = tasks[int(torch.randint(len(tasks), (), generator=state.generator))]
        episodes = episodes_of([task], state.cost_network, state.normaliser).repeat(state.config.episodes)
        figures.append(
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
    mean = [sum(getattr(each, name) for each in figures) / len(figures) for name in ("loss", "reward", "entropy")]
    return PolicyUpdate(*mean)


def make_placer(state: TrainingState) -> DreamShardPlacer:
    """The placer this state has learnt so far."""
    return DreamShardPlacer(state.cost_network, state.policy, state.normaliser)


def _decay(state: TrainingState) -> None:
    """Linear decay over the rounds, down to a twentieth."""
    left = max(1 - state.iteration / state.config.iterations, 0.05)
    for group in state.cost_optimizer.param_groups:
        group["lr"] = state.config.cost_learning_rate * left
    for group in state.policy_optimizer.param_groups:
        group["lr"] = state.config.policy_learning_rate * left
