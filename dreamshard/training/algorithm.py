"""An algorithm that can be trained, as an object; `algorithms.py` has each.

The caller measures placements and saves states. All randomness comes from the state's generator, which is saved with it,
so an interrupted run ends with the same bits as an uninterrupted one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from dreamshard.autoshard import AutoShardPlacer
from dreamshard.cost_model import CostData, CostNetwork, Normaliser, prediction_error
from dreamshard.costs import CostSample, ExchangeSample, feasible
from dreamshard.files.foreign import InputError
from dreamshard.files.text import gib
from dreamshard.measured_on import MeasuredOn
from dreamshard.names import Algorithm
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy.reinforce import UpdateFigures
from dreamshard.search import DreamShardPlacer
from dreamshard.shards import violation
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import files
from dreamshard.training.config import TrainingConfig

TrainedPlacer: TypeAlias = DreamShardPlacer | AutoShardPlacer
Proposal = tuple[PlacementTask, Placement]

_DRAWS_PER_PLACEMENT = 8  # before too few legal placements are an error


@dataclass
class TrainingState:
    """Everything a run needs to continue.

    Attributes:
        iteration: rounds completed.
        cost_network: the algorithm's `CostNetwork`.
        policy: the algorithm's policy network.
        generator: the only source of randomness.
        warm: whether the run started from an earlier placer, whose predictions are good from the first round on.
    """

    config: TrainingConfig
    iteration: int
    normaliser: Normaliser
    cost_network: Any
    policy: Any
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


class TrainingAlgorithm(ABC):
    """Steps and files of a training."""

    name: ClassVar[Algorithm]
    uses_exchanges: ClassVar[bool] = False
    """Whether the cost network learns from all-to-alls measured alone."""
    least_rate: ClassVar[float] = 0.05
    """Of the initial learning rates, to which they fall."""

    @abstractmethod
    def networks(self, normaliser: Normaliser) -> tuple[CostNetwork, nn.Module]:
        """An untrained cost network and policy; their weights are drawn from torch's global generator."""

    @abstractmethod
    def draw(self, state: TrainingState, task: PlacementTask, number: int) -> Proposal:
        """A placement to measure, legal or not, of the task or a part of it; `number` counts the draws of a round."""

    @abstractmethod
    def updates(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> list[UpdateFigures]:
        """Update the policy on predicted costs, by all of a round's optimizer steps."""

    @abstractmethod
    def made(self, network: Any, policy: Any, normaliser: Normaliser, budget_ms: float | None = None) -> TrainedPlacer:
        """A placer of trained networks; `budget_ms` is for its search, if it searches."""

    def placer(self, state: TrainingState) -> TrainedPlacer:
        """The placer that the state has learned so far."""
        return self.made(state.cost_network, state.policy, state.normaliser)

    def normaliser(self, pool: Tables) -> Normaliser:
        """Of the features in a training on tables of `pool`."""
        return Normaliser.fit(pool)

    def start(
        self, pool: Tables, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
    ) -> TrainingState:
        """The state before the first round.

        Args:
            pool: tables of the training tasks.
            config: of this algorithm.
            seed: of everything random that follows.
            exchanges: all-to-alls measured alone on the hardware; with them a placer that `uses_exchanges` serves other
                numbers of devices than the measured placements have.
        """
        state = self._untrained(self.normaliser(pool), config, seed)
        state.cost_network.learn_exchanges(exchanges)
        return state

    def start_from(
        self, placer: TrainedPlacer, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
    ) -> TrainingState:
        """The state before the first round of a training that starts from a copy of an earlier placer.

        The normaliser stays, since the networks were trained on features normalised by it. `config` may be by
        `TrainingConfig.warm`. `exchanges`, if any, replace those that the placer knows.

        Raises:
            ValueError: the placer is of another algorithm.
        """
        if placer.name != self.name:
            raise ValueError(
                f"a training of {self.name} cannot start from a placer of {placer.name}; start without one"
            )
        state = self._untrained(placer.normaliser, config, seed)
        state.cost_network.load_state_dict(placer.cost_network.state_dict())
        state.cost_network.measured_on = placer.cost_network.measured_on
        state.policy.load_state_dict(placer.policy.state_dict())
        state.warm = True
        if exchanges:
            state.cost_network.learn_exchanges(exchanges)
        return state

    def _untrained(self, normaliser: Normaliser, config: TrainingConfig, seed: int) -> TrainingState:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network, policy = self.networks(normaliser)
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

    def propose(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> list[Proposal]:
        """This round's placements to measure, each on a task drawn from `tasks` or a part of it.

        Raises:
            NoPlacementError: too few of eight times as many draws are legal.
        """
        count = state.config.placements_per_iteration
        proposals: list[Proposal] = []
        for number in range(_DRAWS_PER_PLACEMENT * count):
            task, placement = self.draw(state, drawn(tasks, state.generator), number)
            if not violation(task, placement):
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
        self._set_rates(state)
        fitted, fresh = feasible(samples), feasible(samples[-config.placements_per_iteration :])
        if network.measured_on is None and fitted:
            network.measured_on = MeasuredOn.of(fitted[-1])
        setting = network.measured_on.setting if network.measured_on else None
        data = CostData.of(fitted, state.normaliser, setting)
        first = state.iteration == 0 and not state.warm
        held_out = (
            None if first or not fresh else prediction_error(network, CostData.of(fresh, state.normaliser, setting))
        )
        loss = network.fit(
            data,
            state.cost_optimizer,
            steps=config.cost_steps,
            batch=config.cost_batch,
            generator=state.generator,
            first=first,
        )
        return CostFit(loss, held_out.mape if held_out else None, held_out.spearman if held_out else None)

    def improve(self, state: TrainingState, tasks: Sequence[PlacementTask]) -> UpdateFigures:
        """Update the policy on predicted costs and complete the round; returns the means over the updates.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        self._set_rates(state)
        figures = UpdateFigures.mean(self.updates(state, tasks))
        state.iteration += 1
        return figures

    def _set_rates(self, state: TrainingState) -> None:
        """The learning rates of the state's round; a state that was loaded has the initial ones."""
        config = state.config
        remaining = max(1 - state.iteration / config.iterations, self.least_rate)
        state.cost_optimizer.param_groups[0]["lr"] = config.cost_learning_rate * remaining
        state.policy_optimizer.param_groups[0]["lr"] = config.policy_learning_rate * remaining

    def save(self, state: TrainingState, folder: Path) -> None:
        """Write a training state as `folder`, replacing any earlier one."""
        tensors = _tensors(state) | {"generator": state.generator.get_state()}
        tensors |= files.optimizer_tensors(state.cost_optimizer, "cost_optimizer")
        tensors |= files.optimizer_tensors(state.policy_optimizer, "policy_optimizer")
        config = {"iteration": state.iteration, "warm": state.warm, "training": asdict(state.config)}
        files.write_model(folder, tensors, _config(self.name, state) | config)

    def load(self, folder: Path) -> TrainingState:
        """The state that `save` wrote; training continues from it with the same bits.

        Raises:
            ValueError: `folder` holds no state of this algorithm.
        """
        tensors, config = self._read(folder)
        with files.complete_model(folder):
            state = self._untrained(_normaliser(tensors, config), TrainingConfig(**config["training"]), seed=0)
            _restore(state.cost_network, state.policy, tensors, config)
            files.restore_optimizer(state.cost_optimizer, tensors, "cost_optimizer")
            files.restore_optimizer(state.policy_optimizer, tensors, "policy_optimizer")
            state.generator.set_state(tensors["generator"])
            state.iteration, state.warm = config["iteration"], config["warm"]
            return state

    def save_placer(self, placer: TrainedPlacer, folder: Path) -> None:
        """Write a placer as `folder`, replacing any earlier one."""
        budget_ms = placer.budget_ms if isinstance(placer, DreamShardPlacer) else None
        files.write_model(folder, _tensors(placer), _config(self.name, placer) | {"budget_ms": budget_ms})

    def load_placer(self, folder: Path) -> TrainedPlacer:
        """The placer that `save_placer` wrote.

        Raises:
            ValueError: `folder` holds no placer of this algorithm.
        """
        tensors, config = self._read(folder)
        with files.complete_model(folder):
            normaliser = _normaliser(tensors, config)
            network, policy = self.networks(normaliser)
            _restore(network, policy, tensors, config)
            return self.made(network, policy, normaliser, config["budget_ms"])

    def _read(self, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, config = files.read_model(folder)
        if config.get("algorithm") != self.name:
            raise InputError(
                f"the model in {folder} is of {config.get('algorithm')!r}, not of {self.name!r}; load it as such, or train "
                f"{self.name}"
            )
        return tensors, config


def drawn(tasks: Sequence[PlacementTask], generator: torch.Generator) -> PlacementTask:
    """One of the tasks, all equally likely."""
    return tasks[int(torch.randint(len(tasks), (), generator=generator))]


def _tensors(trained: TrainingState | TrainedPlacer) -> dict[str, Tensor]:
    own = files.sections(cost_network=trained.cost_network, policy=trained.policy)
    return own | {"normaliser.mean": trained.normaliser.mean, "normaliser.std": trained.normaliser.std}


def _config(algorithm: Algorithm, trained: TrainingState | TrainedPlacer) -> dict[str, Any]:
    network = trained.cost_network
    return {
        "algorithm": algorithm,
        "normalised_by": trained.normaliser.scope,
        "measured_on": network.measured_on.to_json() if network.measured_on else None,
    }


def _normaliser(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Normaliser:
    return Normaliser(**files.section(tensors, "normaliser"), scope=config["normalised_by"])


def _restore(network: CostNetwork, policy: nn.Module, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    network.load_state_dict(files.section(tensors, "cost_network"))
    network.measured_on = MeasuredOn.from_json(config["measured_on"]) if config["measured_on"] else None
    policy.load_state_dict(files.section(tensors, "policy"))
