"""A model as a folder: tensors in safetensors, everything else in JSON. Nothing is pickled."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES
from dreamshard.files.atomic import replacing
from dreamshard.files.foreign import InputError, reading

_FORMAT = 4
_WEIGHTS = "weights.safetensors"
_CONFIG = "config.json"
_UNREADABLE = (
    "holds no readable model",
    f"so nothing can be loaded from it; give a folder that has {_CONFIG} and {_WEIGHTS}",
)


def write_model(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a model as `folder`, replacing any earlier one."""
    weights = save({name: value.detach().contiguous() for name, value in tensors.items()})
    content = json.dumps({"format": _FORMAT, "features": list(FEATURES), **config}, indent=1)
    for name, data in ((_WEIGHTS, weights), (_CONFIG, content.encode())):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(data)


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the config that `write_model` wrote.

    Raises:
        ValueError: `folder` holds no readable model, or one of another format or with other features.
    """
    with reading(folder, *_UNREADABLE):
        tensors, config = load((folder / _WEIGHTS).read_bytes()), json.loads((folder / _CONFIG).read_bytes())
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("features") != list(FEATURES):
        raise InputError(
            f"the model in {folder} has a format or features other than this version's, so its predictions would be "
            "wrong; train it again with this version"
        )
    return tensors, config


@contextmanager
def complete_model(folder: Path) -> Iterator[None]:
    """Raise ValueError for a folder whose files can be read but hold another model than expected."""
    with reading(
        folder,
        "does not hold the complete model that is expected there",
        "so it cannot be used; it was changed after it was written, or is of another kind: save it again",
    ):
        yield


def section(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix` and a dot, without these."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def sections(**modules: nn.Module) -> dict[str, Tensor]:
    """Weights of modules, in a section each."""
    return {f"{prefix}.{name}": value for prefix, own in modules.items() for name, value in own.state_dict().items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """An optimizer's moments by `prefix`, number of the parameter, and name."""
    return {
        f"{prefix}.{index}.{name}": value
        for index, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Give an optimizer the moments of `optimizer_tensors`; learning rates are no part of them."""
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in section(tensors, prefix).items():
        index, moment = name.split(".")
        moments.setdefault(int(index), {})[moment] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
