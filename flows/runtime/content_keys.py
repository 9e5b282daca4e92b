"""Keys of results that are kept in the store: the same inputs and the same source give the same key.

Prefect's own cache policies hash only the lines of the Prefect task. The library function behind it may change without
them, and a stale result would be returned, so these keys also hold a digest of the library's source.
"""

import hashlib
import importlib.metadata
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dreamshard
import storage
from dreamshard import tables, workloads
from dreamshard.files.digests import digest, json_digest


@cache
def library_hash() -> str:
    """Digest of the source of `dreamshard` and `storage`, and of the versions of the libraries they compute with."""
    sources = [_source(Path(str(package.__file__)).parent) for package in (dreamshard, storage)]
    versions = [_version(library).encode() + b"\0" for library in ("torch", "numpy", "fbgemm-gpu", "fbgemm-gpu-cpu")]
    return digest(b"".join([*sources, *versions]))


@cache
def flows_hash() -> str:
    """Digest of the flows' source, for Prefect tasks that do more themselves than calling one library function."""
    return digest(_source(Path(__file__).parents[1]))


@cache
def workloads_hash() -> str:
    """Digest of all source that determines a table's lookups and their statistics."""
    statistics = hashlib.sha256(Path(str(tables.__file__)).read_bytes()).digest()
    return digest(_source(Path(str(workloads.__file__)).parent) + statistics + _version("numpy").encode())


def content_key(*parts: Any, library: bool = True) -> str:
    """16 hexadecimal digits for `parts` (numbers, text, lists, dataclasses).

    Args:
        library: let the digits depend on the library's source as well.
    """
    return json_digest([*parts, library_hash()] if library else parts, sort_keys=True, default=_plain)


def _source(root: Path) -> bytes:
    """All Python files below `root`: name and digest of each, so that no two trees look alike."""
    files = sorted(root.rglob("*.py"))
    return b"".join(
        str(file.relative_to(root)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest() for file in files
    )


def _version(library: str) -> str:
    """Version of a library; empty if it is not installed: fbgemm has two builds, and a machine may have neither."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a cache key; pass a path, an id or a dataclass instead")
