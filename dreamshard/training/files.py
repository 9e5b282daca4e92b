"""A model as a folder: tensors in safetensors, everything else in JSON. Nothing is pickled."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from dreamshard.cost_model import FEATURES
from dreamshard.files.atomic import replacing
from dreamshard.files.foreign import InputError, reading

Sections = Mapping[str, Mapping[str, Tensor]]
"""Tensors of each part of a model by their names."""

_FORMAT = 4
_WEIGHTS = "weights.safetensors"
_CONFIG = "config.json"
_UNREADABLE = (
    "holds no readable model",
    f"so nothing can be loaded from it; give a folder that has {_CONFIG} and {_WEIGHTS}",
)


def write_model(folder: Path, sections: Sections, config: Mapping[str, Any]) -> None:
    """Write a model as `folder`, replacing any earlier one; the file names a tensor by its section, a dot, and its name."""
    tensors = {f"{of}.{name}": value for of, own in sections.items() for name, value in own.items()}
    weights = save({name: value.detach().contiguous() for name, value in tensors.items()})
    content = json.dumps({"format": _FORMAT, "features": list(FEATURES), **config}, indent=1)
    for name, data in ((_WEIGHTS, weights), (_CONFIG, content.encode())):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(data)


def read_model(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The sections and the config that `write_model` wrote.

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
    sections: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections, config


@contextmanager
def complete_model(folder: Path) -> Iterator[None]:
    """Raise ValueError for a folder whose files can be read but hold another model than expected."""
    with reading(
        folder,
        "does not hold the complete model that is expected there",
        "so it cannot be used; it was changed after it was written, or is of another kind: save it again",
    ):
        yield


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments by number of the parameter and name."""
    states = optimizer.state_dict()["state"].items()
    return {f"{index}.{name}": value for index, own in states for name, value in own.items()}


def restore_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer its `moments`; learning rates are no part of them."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        states.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
