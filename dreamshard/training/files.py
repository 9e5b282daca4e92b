"""A model as a folder: tensors in safetensors, everything else in JSON. Nothing is pickled."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from dreamshard.files.atomic import replacing

Sections = Mapping[str, Mapping[str, Tensor]]
"""Tensors of each part of a model by their names."""

_FORMAT = 5
_WEIGHTS = "weights.safetensors"
_CONFIG = "config.json"
UNREADABLE = (
    "holds no complete model of this version",
    f"so it cannot be used; give a folder that has {_CONFIG} and {_WEIGHTS} as they were written, or train it again",
)
"""Problem and advice for `reading`, about any error of a folder."""


def write_model(folder: Path, sections: Sections, config: Mapping[str, Any]) -> None:
    """Write a model as `folder`, replacing any earlier one; the file names a tensor by its section, a dot, and its name."""
    tensors = {f"{of}.{name}": value for of, own in sections.items() for name, value in own.items()}
    weights = save({name: value.detach().contiguous() for name, value in tensors.items()})
    content = json.dumps({"format": _FORMAT, **config}, indent=1)
    for name, data in ((_WEIGHTS, weights), (_CONFIG, content.encode())):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(data)


def read_model(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The sections and the config that `write_model` wrote; any error if they are missing, damaged or of another format."""
    config = json.loads((folder / _CONFIG).read_bytes())
    if config["format"] != _FORMAT:
        raise ValueError(f"format {config['format']} instead of {_FORMAT}")
    sections: dict[str, dict[str, Tensor]] = {}
    for key, value in load((folder / _WEIGHTS).read_bytes()).items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections, config


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
