"""The steps and files of a training, by any algorithm: Algorithm 1 of DreamShard, or AutoShard's rounds.

Both have the same steps under the same names; only here it is decided whose are meant, by the settings, the state, the
placer or the folder at hand.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from dreamshard import autoshard, model_files, training
from dreamshard.algorithms import TrainingConfig
from dreamshard.autoshard import AutoShardConfig, AutoShardPlacer, AutoShardState
from dreamshard.costs import CostSample, ExchangeSample
from dreamshard.model_folder import read_config
from dreamshard.placement import Placement
from dreamshard.policy.reinforce import UpdateFigures
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import CostFit, TrainingState

State: TypeAlias = TrainingState | AutoShardState
TrainedPlacer: TypeAlias = DreamShardPlacer | AutoShardPlacer


def networks_of(config: TrainingConfig) -> tuple[str, str]:
    """Kinds of the cost network and of the policy; a training starts only from a placer of the same kinds."""
    if config.algorithm == "autoshard":
        return ("autoshard", "autoshard")
    return (config.cost_network, config.policy)


def start_training(pool: Tables, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()) -> State:
    """The state before the first round; see `training.start_training`."""
    if config.algorithm == "autoshard":
        return autoshard.start_training(pool, AutoShardConfig.of(config), seed, exchanges)
    return training.start_training(pool, config, seed, exchanges)


def continue_from(
    placer: TrainedPlacer, config: TrainingConfig, seed: int, exchanges: Sequence[ExchangeSample] = ()
) -> State:
    """The state before the first round of a training that starts from an earlier placer.

    Args:
        placer: copied.
        config: by `TrainingConfig.warm`.
        seed: of everything random.
        exchanges: see `training.start_training`.

    Raises:
        ValueError: the placer's networks are of another kind than those of `config`.
    """
    if isinstance(placer, AutoShardPlacer) and config.algorithm == "autoshard":
        return autoshard.continue_from(placer, AutoShardConfig.of(config).warm(), seed, exchanges)
    if isinstance(placer, AutoShardPlacer) or config.algorithm == "autoshard":
        raise ValueError(
            f"the placer is one of {placer.name}, but the training is of {config.algorithm}, so it cannot start from this "
            "placer; start without one"
        )
    return training.continue_from(placer, config, seed, exchanges)


def propose(state: State, tasks: Sequence[PlacementTask]) -> list[tuple[PlacementTask, Placement]]:
    """This round's placements to measure; raises NoPlacementError where too few are legal."""
    return autoshard.propose(state, tasks) if isinstance(state, AutoShardState) else training.propose(state, tasks)


def fit_costs(state: State, samples: Sequence[CostSample]) -> CostFit:
    """Fit the state's cost network to the samples of all rounds; raises like `training.fit_costs`."""
    if isinstance(state, AutoShardState):
        return autoshard.fit_costs(state, samples)
    return training.fit_costs(state, samples)


def improve_policy(state: State, tasks: Sequence[PlacementTask]) -> UpdateFigures:
    """Update the policy on predicted costs and complete the round; raises like `training.improve_policy`."""
    if isinstance(state, AutoShardState):
        return autoshard.improve_policy(state, tasks)
    return training.improve_policy(state, tasks)


def make_placer(state: State) -> TrainedPlacer:
    """The placer that the state has learnt so far."""
    return autoshard.make_placer(state) if isinstance(state, AutoShardState) else training.make_placer(state)


def save_state(state: State, folder: Path) -> None:
    """Write a training state as `folder`, replacing any earlier one."""
    if isinstance(state, AutoShardState):
        autoshard.save_state(state, folder)
    else:
        model_files.save_state(state, folder)


def load_state(folder: Path) -> State:
    """The state that `save_state` wrote; raises ValueError where `folder` holds none."""
    return autoshard.load_state(folder) if _is_autoshard(folder) else model_files.load_state(folder)


def save_placer(placer: TrainedPlacer, folder: Path) -> None:
    """Write a placer as `folder`, replacing any earlier one."""
    if isinstance(placer, AutoShardPlacer):
        autoshard.save_placer(placer, folder)
    else:
        model_files.save_placer(placer, folder)


def load_placer(folder: Path) -> TrainedPlacer:
    """The placer that `save_placer` wrote; raises ValueError where `folder` holds none."""
    return autoshard.load_placer(folder) if _is_autoshard(folder) else model_files.load_placer(folder)


def _is_autoshard(folder: Path) -> bool:
    return read_config(folder).get("algorithm") == "autoshard"
