"""Placers and training states as folders: tensors in safetensors, everything else in JSON. Nothing is pickled.

A folder is replaced as a whole, so a killed writer leaves the old model or the new one, never a part of either.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES, CostNetwork, Normaliser, new_cost_network
from dreamshard.files import atomic
from dreamshard.measured_on import MeasuredOn
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.training import TrainingConfig, TrainingState, untrained

_FORMAT = 2
_WEIGHTS = "weights.safetensors"
_CONFIG = "config.json"


def save_placer(placer: DreamShardPlacer, folder: Path, notes: Mapping[str, str | bytes] | None = None) -> None:
    """Write `placer` as `folder`, replacing any earlier one.

    Args:
        placer: to be saved.
        folder: to write.
        notes: further files of the folder: name to content.
    """
    config = {
        "cost_network": placer.cost_network.architecture,
        "policy": placer.policy.kind,
        "measured_on": _measured_on(placer.cost_network),
        "rollouts": placer.rollouts,
        "budget_ms": placer.budget_ms,
        **placer.cost_network.arguments(),
    }
    _write(folder, _tensors(placer.cost_network, placer.policy, placer.normaliser), config, notes or {})


def load_placer(folder: Path) -> DreamShardPlacer:
    """The placer that `save_placer` wrote.

    Raises:
        ValueError: `folder` holds no such placer, or one with other features than this version's.
    """
    tensors, config = _read(folder)
    with _complete(folder):
        normaliser = Normaliser(**_section(tensors, "normaliser"))
        network = new_cost_network(config["cost_network"], normaliser, config)
        policy = PolicyNetwork(config["policy"])
        network.load_state_dict(_section(tensors, "cost_network"))
        network.measured_on = _known(config)
        policy.load_state_dict(_section(tensors, "policy"))
        return DreamShardPlacer(network, policy, normaliser, config["rollouts"], config["budget_ms"])


def save_state(state: TrainingState, folder: Path) -> None:
    """Write a training state as `folder`, replacing any earlier one."""
    tensors = _tensors(state.cost_network, state.policy, state.normaliser)
    tensors["generator"] = state.generator.get_state()
    for prefix, optimizer in _optimizers(state).items():
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"{prefix}.{index}.{name}": value for name, value in moments.items()}
    config = {"iteration": state.iteration, "warm": state.warm, "training": asdict(state.config)}
    config["measured_on"] = _measured_on(state.cost_network)
    _write(folder, tensors, config, {})


def load_state(folder: Path) -> TrainingState:
    """The state that `save_state` wrote; training continues from it with the same bits.

    Raises:
        ValueError: `folder` holds no such state.
    """
    tensors, config = _read(folder)
    with _complete(folder):
        normaliser = Normaliser(**_section(tensors, "normaliser"))
        state = untrained(normaliser, TrainingConfig(**config["training"]), seed=0)
        state.cost_network.load_state_dict(_section(tensors, "cost_network"))
        state.cost_network.measured_on = _known(config)
        state.policy.load_state_dict(_section(tensors, "policy"))
        for prefix, optimizer in _optimizers(state).items():
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in _section(tensors, prefix).items():
                index, moment = name.split(".")
                moments.setdefault(int(index), {})[moment] = value
            optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
        state.generator.set_state(tensors["generator"])
        state.iteration, state.warm = config["iteration"], config["warm"]
        return state


@contextmanager
def _complete(folder: Path) -> Iterator[None]:
    """Raise ValueError for a folder whose files can be read but are not those of the expected model."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{folder} does not hold the complete model that is expected there ({error!r}), so it cannot be used; it was "
            "changed after it was written, or is of another kind: save it again"
        ) from error


def _tensors(network: nn.Module, policy: nn.Module, normaliser: Normaliser) -> dict[str, Tensor]:
    tensors = {f"cost_network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"policy.{name}": value for name, value in policy.state_dict().items()}
    return tensors | {"normaliser.mean": normaliser.mean, "normaliser.std": normaliser.std}


def _measured_on(network: CostNetwork) -> dict[str, Any] | None:
    return network.measured_on.to_json() if network.measured_on else None


def _known(config: Mapping[str, Any]) -> MeasuredOn | None:
    """What the model was measured on; None in files written before that was kept."""
    return MeasuredOn.from_json(config["measured_on"]) if config.get("measured_on") else None


def _section(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix` and a dot, without these."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _optimizers(state: TrainingState) -> dict[str, torch.optim.Optimizer]:
    return {"cost_optimizer": state.cost_optimizer, "policy_optimizer": state.policy_optimizer}


def _write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], notes: Mapping[str, str | bytes]) -> None:
    with atomic.replacing_folder(folder) as temporary:
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, temporary / _WEIGHTS)
        (temporary / _CONFIG).write_text(
            json.dumps({"format": _FORMAT, "features": list(FEATURES), **config}, indent=1)
        )
        for name, content in notes.items():
            (temporary / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    folder = atomic.complete_folder(folder)
    try:
        config = json.loads((folder / _CONFIG).read_text())
        tensors = load_file(folder / _WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"{folder} holds no readable model ({error}), so nothing can be loaded from it; give a folder that has "
            f"{_CONFIG} and {_WEIGHTS}"
        ) from error
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("features") != list(FEATURES):
        raise ValueError(
            f"the model in {folder} has a format or features other than this version's, so its predictions would be "
            "wrong; train it again with this version"
        )
    return tensors, config
