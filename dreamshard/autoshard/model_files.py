"""AutoShard's placers and training states as folders (`model_folder`), whose JSON has `autoshard` as `algorithm`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from dreamshard.autoshard.config import AutoShardConfig
from dreamshard.autoshard.cost_network import ComputeCostNetwork
from dreamshard.autoshard.placer import AutoShardPlacer
from dreamshard.autoshard.policy_network import AutoShardPolicy
from dreamshard.autoshard.training import AutoShardState, untrained
from dreamshard.cost_model import Normaliser
from dreamshard.files.foreign import InputError
from dreamshard.measured_on import MeasuredOn
from dreamshard.model_folder import (
    complete_model,
    optimizer_tensors,
    read_model,
    restore_optimizer,
    section,
    write_model,
)

_ALGORITHM = "autoshard"


def save_placer(placer: AutoShardPlacer, folder: Path) -> None:
    """Write `placer` as `folder`, replacing any earlier one."""
    tensors = _tensors(placer.cost_network, placer.policy, placer.normaliser)
    write_model(folder, tensors, _config(placer.cost_network))


def load_placer(folder: Path) -> AutoShardPlacer:
    """The placer that `save_placer` wrote.

    Raises:
        ValueError: `folder` holds no such placer, or one with other features than this version's.
    """
    tensors, config = _read(folder)
    with complete_model(folder):
        network, policy = ComputeCostNetwork(), AutoShardPolicy()
        _restore(network, policy, tensors, config)
        return AutoShardPlacer(network, policy, Normaliser(tensors["normaliser.mean"], tensors["normaliser.std"]))


def save_state(state: AutoShardState, folder: Path) -> None:
    """Write a training state as `folder`, replacing any earlier one."""
    tensors = _tensors(state.cost_network, state.policy, state.normaliser)
    tensors["generator"] = state.generator.get_state()
    tensors |= optimizer_tensors(state.cost_optimizer, "cost_optimizer")
    tensors |= optimizer_tensors(state.policy_optimizer, "policy_optimizer")
    config = {"iteration": state.iteration, "warm": state.warm, "training": asdict(state.config)}
    write_model(folder, tensors, config | _config(state.cost_network))


def load_state(folder: Path) -> AutoShardState:
    """The state that `save_state` wrote; training continues from it with the same bits.

    Raises:
        ValueError: `folder` holds no such state.
    """
    tensors, config = _read(folder)
    with complete_model(folder):
        normaliser = Normaliser(tensors["normaliser.mean"], tensors["normaliser.std"])
        state = untrained(normaliser, AutoShardConfig(**config["training"]), seed=0)
        _restore(state.cost_network, state.policy, tensors, config)
        restore_optimizer(state.cost_optimizer, tensors, "cost_optimizer")
        restore_optimizer(state.policy_optimizer, tensors, "policy_optimizer")
        state.generator.set_state(tensors["generator"])
        state.iteration, state.warm = config["iteration"], config["warm"]
        return state


def _tensors(network: ComputeCostNetwork, policy: AutoShardPolicy, normaliser: Normaliser) -> dict[str, Tensor]:
    tensors = {f"cost_network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"policy.{name}": value for name, value in policy.state_dict().items()}
    return tensors | {"normaliser.mean": normaliser.mean, "normaliser.std": normaliser.std}


def _config(network: ComputeCostNetwork) -> dict[str, Any]:
    measured_on = network.measured_on.to_json() if network.measured_on else None
    return {"algorithm": _ALGORITHM, "measured_on": measured_on}


def _restore(
    network: ComputeCostNetwork, policy: AutoShardPolicy, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    network.load_state_dict(section(tensors, "cost_network"))
    network.measured_on = MeasuredOn.from_json(config["measured_on"]) if config["measured_on"] else None
    policy.load_state_dict(section(tensors, "policy"))


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, config = read_model(folder)
    if config.get("algorithm") != _ALGORITHM:
        raise InputError(
            f"the model in {folder} is of {config.get('algorithm', 'dreamshard')!r}, not of {_ALGORITHM!r}, so its networks "
            "are others; load it as what it is, or train AutoShard"
        )
    return tensors, config
