"""The algorithms that can be trained, by name; the caller measures placements and saves states.

- `dreamshard`: this project's cost network, and its search.
- `paper`: DreamShard as published (arXiv 2210.02023): the paper's networks, and placements by the greedy policy alone.
- `autoshard`: after AutoShard (arXiv 2208.06399); `docs/as-published.md` lists what differs.

All randomness comes from the state's generator, which is saved with it, so an interrupted run ends with the same bits as an
uninterrupted one.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import safetensors.torch as safetensors
import torch
from torch import Tensor, nn
from torch.optim import Adam
from upath import UPath

from dreamshard.cost_model import (
    CostData,
    CostNetwork,
    Normaliser,
    PaperCostNetwork,
    StructuredCostNetwork,
    prediction_error,
)
from dreamshard.costs import CostSample, ExchangeSample, MeasuredOn, feasible
from dreamshard.files import gib, reading, replacing
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episode, PolicyNetwork, UpdateFigures
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from dreamshard.testbeds.base import Testbed
from dreamshard.training import autoshard
from dreamshard.training.autoshard import AutoShardPlacer, AutoShardPolicy, ComputeCostNetwork
from dreamshard.training.config import Algorithm, TrainingConfig

TrainedPlacer: TypeAlias = DreamShardPlacer | AutoShardPlacer

_WEIGHTS, _CONFIG, _REST = "weights.safetensors", "config.json", "training.pt"
_OPTIONS = ("budget_ms", "columns", "inference")  # of a placer
_UNREADABLE = ("holds no complete model", f"give a folder with {_CONFIG} and {_WEIGHTS}, or train again")
_DRAWS_PER_PLACEMENT = 8  # before too few legal placements are an error
_UNBALANCED_SPREAD = 1.7  # of the logarithm of a device's share of tables, in exploration


@dataclass
class TrainingState:
    """Everything that a run needs to continue after `iteration` rounds; `generator` is its only source of randomness."""

    config: TrainingConfig
    normaliser: Normaliser
    cost_network: Any
    policy: Any
    iteration: int = 0
    cost_optimizer: torch.optim.Optimizer = field(init=False)
    policy_optimizer: torch.optim.Optimizer = field(init=False)
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        config = self.config
        self.cost_optimizer = Adam(self.cost_network.parameters(), lr=config.cost_learning_rate, fused=True)
        self.policy_optimizer = Adam(self.policy.parameters(), lr=config.policy_learning_rate, fused=True)


@dataclass(frozen=True)
class CostFit:
    """Loss of a round's fit, and the error on its new placements before it; None in the first round of a cold start."""

    loss: float
    heldout_mape: float | None


@dataclass(frozen=True, kw_only=True)
class TrainingAlgorithm:
    """Algorithm 1 of the paper, by default with the structured cost network and placers that search.

    Attributes:
        network: makes an untrained cost network; weights, also the policy's, are drawn from torch's global generator.
        policy: makes an untrained policy.
        normaliser: of the features in a training on tables of a pool.
        made: a placer of trained networks.
        uses_exchanges: whether the cost network learns from all-to-alls measured alone.
        least_rate: share of the initial learning rates, to which they fall.
        coasts: whether each network follows its momentum while the other learns.
        rollout: places the tables of a task by the policy.
        update: improves the policy on predicted costs of rollouts of one task.
        updates: calls of `update` per `TrainingConfig.policy_updates`.
    """

    name: Algorithm = "dreamshard"
    network: Callable[[Normaliser], CostNetwork] = StructuredCostNetwork
    policy: Callable[[], nn.Module] = PolicyNetwork
    normaliser: Callable[[Tables], Normaliser] = Normaliser.fit
    made: Callable[..., TrainedPlacer] = DreamShardPlacer
    uses_exchanges: bool = True
    least_rate: float = 0.05
    coasts: bool = False
    rollout: Callable[..., Any] = mdp.rollout
    update: Callable[..., UpdateFigures] = mdp.update
    updates: float = 1.0

    def placer(self, state: TrainingState) -> TrainedPlacer:
        """The placer that the state has learned so far."""
        return self.made(state.cost_network, state.policy, state.normaliser)

    def start(
        self,
        pool: Tables,
        config: TrainingConfig,
        seed: int,
        exchanges: Sequence[ExchangeSample] = (),
        base: TrainedPlacer | None = None,
    ) -> TrainingState:
        """The state before the first round.

        Args:
            pool: tables of the training tasks.
            config: of this algorithm; with `base` perhaps by `TrainingConfig.warm`.
            seed: of everything random that follows.
            exchanges: all-to-alls measured alone on the hardware; with them a placer that `uses_exchanges` serves other
                numbers of devices than the measured placements have. They replace those that `base` knows.
            base: earlier placer to continue from; its normaliser stays, since its networks were trained with it.

        Raises:
            ValueError: `base` is of another algorithm.
        """
        network: Any
        if base is None:
            normaliser = self.normaliser(pool)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                network, policy = self.network(normaliser), self.policy()
        elif base.name == self.name:
            network, policy, normaliser = deepcopy(base.cost_network), deepcopy(base.policy), base.normaliser
        else:
            raise ValueError(f"a training of {self.name} cannot start from a placer of {base.name}; start without one")
        if exchanges and self.uses_exchanges:
            network.exchanges.learn_exchanges(exchanges)
        state = TrainingState(config, normaliser, network, policy)
        state.generator.manual_seed(seed)
        return state

    def propose(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
        """This round's placements to measure, each of a task drawn from `tasks`: sampled from the policy, or unbalanced.

        Raises:
            NoPlacementError: too few of eight times as many draws are legal.
        """
        count, share = state.config.placements_per_iteration, state.config.exploration
        generator = state.generator
        proposals = []
        for number in range(_DRAWS_PER_PLACEMENT * count):
            task = _drawn(tasks, generator)
            if number * share % 1 < share:
                device = _unbalanced(task, generator, self.name)
            else:
                episode = Episode.of(task, state.cost_network, state.normaliser)
                device = self.rollout(state.policy, episode, 1, generator).device[0]
            placement = Placement.whole(device, task.num_devices)
            if not violation(task, placement, is_measured=True):
                proposals.append((task, placement))
            if len(proposals) == count:
                return proposals
        raise NoPlacementError(
            f"only {len(proposals)} of {_DRAWS_PER_PLACEMENT * count} sampled placements fit the devices; give the devices "
            f"of the tasks more than {gib(tasks[0].memory_bytes)}"
        )

    def fit(self, state: TrainingState, samples: Sequence[CostSample]) -> CostFit:
        """Fit the cost network to the samples of all rounds, of which the last `placements_per_iteration` are new.

        Placements that did not fit their devices do not count.

        Raises:
            ValueError: no placement fit its devices.
            TrainingDivergedError: the loss is not finite.
        """
        config, network = state.config, state.cost_network
        remaining = max(1 - state.iteration / config.iterations, self.least_rate)
        state.cost_optimizer.param_groups[0]["lr"] = config.cost_learning_rate * remaining
        state.policy_optimizer.param_groups[0]["lr"] = config.policy_learning_rate * remaining
        fresh = feasible(samples[-config.placements_per_iteration :])
        error, data = None, CostData.of(feasible(samples), state.normaliser)
        if fresh and network.measured_on is not None:
            unseen = CostData.of(fresh, state.normaliser)
            error = prediction_error(network, unseen)
            network.learn_relative_error(unseen)
        loss = network.fit(data, state.cost_optimizer, config.cost_steps, config.cost_batch, state.generator)
        network.measured_on = data.measured_on
        if self.coasts:
            _coast(state.policy_optimizer, config.cost_steps)
        return CostFit(loss, error)

    def improve(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> UpdateFigures:
        """Update the policy on predicted costs and complete the round; returns the means over the updates."""
        config, policy, generator, figures = state.config, state.policy, state.generator, []
        for _ in range(round(self.updates * config.policy_updates)):
            episode = Episode.of(_drawn(tasks, generator), state.cost_network, state.normaliser)
            figures.append(
                self.update(policy, state.policy_optimizer, episode, config.episodes, config.entropy_weight, generator)
            )
            if self.coasts:
                _coast(state.cost_optimizer, 1)
        state.iteration += 1
        return UpdateFigures(*map(fmean, zip(*figures, strict=True)))

    def save(self, state: TrainingState, folder: Path) -> None:
        """Write a training state as `folder`, replacing any earlier one: its placer, optimizers and generator."""
        save_placer(self.placer(state), folder)
        rest = {
            "iteration": state.iteration,
            "training": asdict(state.config),
            "cost_optimizer": state.cost_optimizer.state_dict(),
            "policy_optimizer": state.policy_optimizer.state_dict(),
            "generator": state.generator.get_state(),
        }
        with replacing(folder / _REST) as temporary:
            torch.save(rest, temporary)


TRAINING_ALGORITHMS: dict[str, TrainingAlgorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        TrainingAlgorithm(),
        TrainingAlgorithm(
            name="paper",
            network=lambda _: PaperCostNetwork(),
            normaliser=lambda _: Normaliser.per_task(),
            made=partial(DreamShardPlacer, inference="policy"),
            uses_exchanges=False,
            least_rate=0.0,
            coasts=True,  # one Adam of both networks; before torch 2, `zero_grad` left gradients of 0: Adam steps by them
            update=partial(mdp.update, masks=False),
        ),
        TrainingAlgorithm(
            name="autoshard",  # placers balance compute, whatever all-to-alls cost
            network=lambda _: ComputeCostNetwork(),
            policy=AutoShardPolicy,
            made=AutoShardPlacer,
            uses_exchanges=False,
            rollout=autoshard.rollout,
            update=autoshard.update,
            updates=1.5,
        ),
    )
}


def train(
    pool: Tables, tasks: Sequence[PlacementTask], testbed: Testbed, config: TrainingConfig | None = None, seed: int = 0
) -> TrainedPlacer:
    """Train a placer by Algorithm 1: rounds of measuring placements, fitting the costs, and improving the policy.

    Args:
        pool: tables of the tasks.
        testbed: measures placements of the tasks.
        config: of the rounds; by default ten of ten placements.
        seed: of everything random.

    >>> placer = ds.train(task.tables, [task], testbed, ds.TrainingConfig(iterations=1, placements_per_iteration=4))
    >>> placer.place(task).num_devices
    2
    """
    config, samples = config or TrainingConfig(), list[CostSample]()
    method = TRAINING_ALGORITHMS[config.algorithm]
    state = method.start(pool, config, seed)
    for _ in range(config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in method.propose(state, tasks)]
        method.fit(state, samples)
        method.improve(state, tasks)
    return method.placer(state)


def save_placer(placer: TrainedPlacer, folder: Path) -> None:
    """Write a placer as `folder`, replacing any earlier one: tensors in safetensors, everything else in JSON.

    >>> ds.save_placer(placer, Path("my_placer"))
    >>> ds.load_placer("my_placer").name
    'dreamshard'
    """
    measured_on, normaliser = placer.cost_network.measured_on, placer.normaliser
    weights = nn.ModuleDict({"cost_network": placer.cost_network, "policy": placer.policy}).state_dict()
    weights |= {"normaliser.mean": normaliser.mean, "normaliser.std": normaliser.std}
    config = {
        "algorithm": placer.name.removesuffix("_policy"),
        "normalised_by": normaliser.scope,
        "measured_on": measured_on and measured_on.model_dump(),
        **{name: getattr(placer, name) for name in _OPTIONS if hasattr(placer, name)},
    }
    tensors = safetensors.save({name: value.contiguous() for name, value in weights.items()})
    for name, content in ((_WEIGHTS, tensors), (_CONFIG, json.dumps(config, indent=1).encode())):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)


def load_placer(folder: Path | UPath) -> TrainedPlacer:
    """The placer in a folder, of any algorithm; raises ValueError if there is none."""
    with reading(folder, *_UNREADABLE):
        config = json.loads((folder / _CONFIG).read_bytes())
        weights, method = safetensors.load((folder / _WEIGHTS).read_bytes()), TRAINING_ALGORITHMS[config["algorithm"]]
        mean, std = (weights.pop(f"normaliser.{name}") for name in ("mean", "std"))
        normaliser = Normaliser(mean, std, config["normalised_by"])
        network, policy = method.network(normaliser), method.policy()
        nn.ModuleDict({"cost_network": network, "policy": policy}).load_state_dict(weights)
        network.measured_on = config["measured_on"] and MeasuredOn.model_validate(config["measured_on"])
        options = {name: config[name] for name in _OPTIONS if name in config}
        return replace(method.made(network, policy, normaliser), **options)


def load_state(folder: Path) -> TrainingState:
    """The training state in a folder, of any algorithm; training continues from it with the same bits.

    Raises:
        ValueError: there is none.
    """
    placer = load_placer(folder)
    with reading(folder, *_UNREADABLE):
        rest = torch.load(folder / _REST, weights_only=True)
        training = TrainingConfig(**rest["training"])
        state = TrainingState(training, placer.normaliser, placer.cost_network, placer.policy, rest["iteration"])
        state.cost_optimizer.load_state_dict(rest["cost_optimizer"])
        state.policy_optimizer.load_state_dict(rest["policy_optimizer"])
        state.generator.set_state(rest["generator"])
        return state


def _drawn(tasks: Sequence[PlacementTask], generator: torch.Generator) -> PlacementTask:
    """One of the tasks, all equally likely."""
    return tasks[int(torch.randint(len(tasks), (), generator=generator))]


def _coast(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Take Adam's steps with gradients of 0; weights that never had a gradient stay."""
    for weight in optimizer.param_groups[0]["params"]:
        weight.grad = torch.zeros_like(weight) if weight in optimizer.state else None
    for _ in range(steps):
        optimizer.step()


def _unbalanced(task: PlacementTask, generator: torch.Generator, algorithm: Algorithm) -> Tensor:
    """Devices of a placement with very different numbers and sizes of tables per device, not necessarily legal.

    A policy balances, so its shards are all of one size; a cost network fitted to those alone errs by 4 % on tasks with
    fewer tables per device. Weights of devices are log-normal, so that shards of 1 to nearly all tables occur. Tables of
    about the same lookups x dim share a device, so that few tables are not always little work.
    """
    weights = (_UNBALANCED_SPREAD * torch.randn(task.num_devices, generator=generator)).exp()
    devices = torch.multinomial(weights, len(task.tables), replacement=True, generator=generator)
    if algorithm != "autoshard":  # where tables of any work share a device
        devices[(task.tables.dim * task.tables.pooling_factor).argsort()] = devices.sort().values
        devices = torch.randperm(task.num_devices, generator=generator)[devices]  # or the last one had the heaviest
    return devices
