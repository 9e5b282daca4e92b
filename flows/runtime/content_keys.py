"""Keys of results that are kept in the store: the same inputs and the same version of this package give the same key."""

import importlib.metadata
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from dreamshard.files import json_digest


def content_key(*parts: Any) -> str:
    """16 hexadecimal digits for `parts` (numbers, text, lists, dataclasses) and the version of this package."""
    return json_digest([*parts, importlib.metadata.version("dreamshard")], sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a key; pass a path, an id or a dataclass instead")
