"""A model as a folder: tensors in safetensors, everything else in JSON. Nothing is pickled.

A folder is replaced as a whole, so a killed writer leaves the old model or the new one, never a part of either. Its
`digests.json` has the SHA-256 of each file, and files that have another are not loaded.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from dreamshard.cost_model import FEATURES
from dreamshard.files import atomic
from dreamshard.files.foreign import InputError, file_bytes, json_content, reading

logger = logging.getLogger(__name__)
DIGESTS = "digests.json"
_FORMAT = 2
_WEIGHTS = "weights.safetensors"
_CONFIG = "config.json"
_UNREADABLE = (
    "holds no readable model",
    f"so nothing can be loaded from it; give a folder that has {_CONFIG} and {_WEIGHTS}",
)


def write_model(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a model as `folder`, replacing any earlier one."""
    weights = save({name: value.detach().contiguous() for name, value in tensors.items()})
    about = json.dumps({"format": _FORMAT, "features": list(FEATURES), **config}, indent=1)
    files = {_WEIGHTS: weights, _CONFIG: about.encode()}
    digests = {name: _sha256(content) for name, content in files.items()}
    with atomic.replacing_folder(folder) as temporary:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        (temporary / DIGESTS).write_text(json.dumps({"sha256": digests}, indent=1))


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the config that `write_model` wrote.

    Raises:
        ValueError: `folder` holds no readable model, one that was changed after it was saved, or one of another format or
            with other features.
    """
    folder = atomic.complete_folder(folder)
    config, content = read_config(folder), _read(folder, _WEIGHTS)
    _check_digests(folder, {_WEIGHTS: content})
    with reading(folder, *_UNREADABLE):
        return load(content), config


def read_config(folder: Path) -> dict[str, Any]:
    """The config that `write_model` wrote; raises like `read_model`."""
    folder = atomic.complete_folder(folder)
    content = _read(folder, _CONFIG)
    _check_digests(folder, {_CONFIG: content})
    config = json_content(content, folder, *_UNREADABLE)
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("features") != list(FEATURES):
        raise InputError(
            f"the model in {folder} has a format or features other than this version's, so its predictions would be "
            "wrong; train it again with this version"
        )
    return config


def folder_digest(folder: Path) -> str | None:
    """The SHA-256 of the folder's list of digests, which stands for all files; None where an earlier release wrote it."""
    file = atomic.complete_folder(folder) / DIGESTS
    return _sha256(_read(folder, DIGESTS)) if file.is_file() else None


def check_files(folder: Path, expected: str | None) -> None:
    """Check every file of a model, and that the model is the one with the digest that `folder_digest` gave.

    Args:
        folder: of the model.
        expected: None where an earlier release saved it, so that nothing is known.

    Raises:
        ValueError: a file was changed, is missing, or the model is another one.
    """
    found = folder_digest(folder)
    if expected is not None and found != expected:
        raise InputError(
            f"the model in {folder} is not the one that was saved: the SHA-256 of its {DIGESTS} is {found or 'missing'}, not "
            f"{expected}, so it may place in any way; restore the folder, or use another version"
        )
    if found is not None:
        names = [name for name in _known_digests(folder) if name not in (_CONFIG, _WEIGHTS)]
        _check_digests(folder, {name: _read(folder, name) for name in names})


def _check_digests(folder: Path, files: Mapping[str, bytes]) -> None:
    """Compare files with the digests that were kept when they were saved."""
    if not (folder / DIGESTS).is_file():
        if _WEIGHTS in files:
            logger.warning("%s was saved by an earlier release without digests: a change would not be noticed", folder)
        return
    known = _known_digests(folder)
    for name, content in files.items():
        if _sha256(content) != known.get(name):
            raise InputError(
                f"{folder / name} was changed or damaged after it was saved: its SHA-256 is {_sha256(content)}, not "
                f"{known.get(name)}, so it may place in any way; restore it, or save the model again"
            )


def _known_digests(folder: Path) -> dict[str, str]:
    content = json_content(_read(folder, DIGESTS), folder / DIGESTS, *_UNREADABLE)
    known = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(known, dict) or not {_CONFIG, _WEIGHTS} <= known.keys() or any("/" in name for name in known):
        raise InputError(
            f"{folder / DIGESTS} lists no digests of {_CONFIG} and {_WEIGHTS}, so changes to them would not be noticed; "
            "restore it, or save the model again"
        )
    return known


def _read(folder: Path, name: str) -> bytes:
    return file_bytes(folder / name, *_UNREADABLE)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def complete_model(folder: Path) -> Iterator[None]:
    """Raise ValueError for a folder whose files can be read but are not those of the expected model."""
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


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """An optimizer's moments by `prefix`, number of the parameter, and name."""
    return {
        f"{prefix}.{index}.{name}": value
        for index, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Give an optimizer the moments of `optimizer_tensors`."""
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in section(tensors, prefix).items():
        index, moment = name.split(".")
        moments.setdefault(int(index), {})[moment] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
