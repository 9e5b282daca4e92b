"""Placers and training states as folders (`model_folder`)."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn, optim

from dreamshard.cost_model import CostNetwork, Normaliser, new_cost_network
from dreamshard.files.foreign import InputError, brief
from dreamshard.measured_on import MeasuredOn
from dreamshard.model_folder import (
    complete_model,
    optimizer_tensors,
    read_model,
    restore_optimizer,
    section,
    write_model,
)
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.training import TrainingConfig, TrainingState, untrained


def save_placer(placer: DreamShardPlacer, folder: Path) -> None:
    """Write `placer` as `folder`, replacing any earlier one."""
    config = {
        "cost_network": placer.cost_network.architecture,
        "policy": placer.policy.kind,
        "normalised_by": placer.normaliser.scope,
        "measured_on": _measured_on(placer.cost_network),
        "rollouts": placer.rollouts,
        "budget_ms": placer.budget_ms,
        "inference": placer.inference,
        **placer.cost_network.arguments(),
    }
    networks = {"cost_network": placer.cost_network, "policy": placer.policy}
    write_model(folder, _tensors(networks, placer.normaliser), config)


def load_placer(folder: Path) -> DreamShardPlacer:
    """The placer that `save_placer` wrote.

    Raises:
        ValueError: `folder` holds no such placer, or one with other features than this version's.
    """
    tensors, config = read_model(folder)
    with complete_model(folder):
        normaliser = _normaliser(tensors, config)
        _check_size(section(tensors, "cost_network"), config, folder)
        network = new_cost_network(config["cost_network"], normaliser, config)
        policy = PolicyNetwork(config["policy"])
        network.load_state_dict(section(tensors, "cost_network"))
        network.measured_on = _known(config)
        policy.load_state_dict(section(tensors, "policy"))
        return DreamShardPlacer(
            network, policy, normaliser, config["rollouts"], config["budget_ms"], inference=config["inference"]
        )


def save_state(state: TrainingState, folder: Path) -> None:
    """Write a training state as `folder`, replacing any earlier one."""
    tensors = _tensors({"cost_network": state.cost_network, "policy": state.policy}, state.normaliser)
    tensors["generator"] = state.generator.get_state()
    for prefix, optimizer in _optimizers(state).items():
        tensors |= optimizer_tensors(optimizer, prefix)
    config = {"iteration": state.iteration, "warm": state.warm, "training": asdict(state.config)}
    config |= {"measured_on": _measured_on(state.cost_network), "normalised_by": state.normaliser.scope}
    write_model(folder, tensors, config)


def load_state(folder: Path) -> TrainingState:
    """The state that `save_state` wrote; training continues from it with the same bits.

    Raises:
        ValueError: `folder` holds no such state.
    """
    tensors, config = read_model(folder)
    with complete_model(folder):
        normaliser = _normaliser(tensors, config)
        state = untrained(normaliser, TrainingConfig(**config["training"]), seed=0)
        state.cost_network.load_state_dict(section(tensors, "cost_network"))
        state.cost_network.measured_on = _known(config)
        state.policy.load_state_dict(section(tensors, "policy"))
        for prefix, optimizer in _optimizers(state).items():
            restore_optimizer(optimizer, tensors, prefix)
        state.generator.set_state(tensors["generator"])
        state.iteration, state.warm = config["iteration"], config["warm"]
        return state


def _tensors(networks: Mapping[str, nn.Module], normaliser: Normaliser) -> dict[str, Tensor]:
    tensors = {
        f"{prefix}.{name}": value for prefix, module in networks.items() for name, value in module.state_dict().items()
    }
    return tensors | {"normaliser.mean": normaliser.mean, "normaliser.std": normaliser.std}


def _check_size(weights: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a config of another network than the weights are of, before memory is asked for that network.

    Raises:
        ValueError: its size differs.
    """
    if config["cost_network"] == "paper":
        return
    size = (config["members"], 2, config["hidden"])
    found = tuple(weights["hidden_bias"].shape)
    if found != size:
        raise InputError(
            f"the config of the model in {folder} asks for a cost network of {brief(size[0])} members with {brief(size[2])} "
            f"hidden values, but its weights are of shape {list(found)}, so they belong to another model; restore both "
            "files, or save the model again"
        )


def _normaliser(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Normaliser:
    return Normaliser(**section(tensors, "normaliser"), scope=config["normalised_by"])


def _measured_on(network: CostNetwork) -> dict[str, Any] | None:
    return network.measured_on.to_json() if network.measured_on else None


def _known(config: Mapping[str, Any]) -> MeasuredOn | None:
    return MeasuredOn.from_json(config["measured_on"]) if config["measured_on"] else None


def _optimizers(state: TrainingState) -> dict[str, optim.Optimizer]:
    return {"cost_optimizer": state.cost_optimizer, "policy_optimizer": state.policy_optimizer}
