"""When a finished task's result may be used again: same inputs, same library.

Prefect's own policies hash a task's lines only; the library function behind a thin task may change without them, and a
stale result would be returned. So the key also holds a hash of the library's source.
"""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prefect.cache_policies import CacheKeyFnPolicy
from prefect.context import TaskRunContext

import dreamshard
import storage
from dreamshard import tables, workloads
from dreamshard.files.digests import digest, json_digest
from storage.settings import Settings

NOT_CONTENT = ("run",)
"""Arguments that say where to report to, not what to compute."""


@cache
def library_hash() -> str:
    """Hash of all source of `dreamshard` and `storage`, and of the versions of what they compute with."""
    source = b"".join(_source(Path(str(package.__file__)).parent) for package in (dreamshard, storage))
    libraries = ("torch", "numpy", "fbgemm-gpu", "fbgemm-gpu-cpu")
    return digest(source + b"".join(_version(library).encode() + b"\0" for library in libraries))


@cache
def flows_hash() -> str:
    """Hash of the flows' source, for steps that do more of the work themselves than calling one library function."""
    return digest(_source(Path(__file__).parents[1]))


def _source(root: Path) -> bytes:
    """All Python files below `root` with their names; each by its own hash, so that no two trees look alike."""
    files = sorted(root.rglob("*.py"))
    return b"".join(
        str(file.relative_to(root)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest() for file in files
    )


def _version(library: str) -> str:
    """Of an installed library; empty where it is not: there are two builds of fbgemm, and a machine may have neither."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def workloads_hash() -> str:
    """Hash of the source of everything that says what a table's lookups are, and what is said of them."""
    of_tables = hashlib.sha256(Path(str(tables.__file__)).read_bytes()).digest()
    return digest(_source(Path(str(workloads.__file__)).parent) + of_tables + _version("numpy").encode())


def content_key(*parts: Any, library: bool = True) -> str:
    """16 hex digits that stand for `parts` (numbers, text, lists, dataclasses) and, with `library`, for its source."""
    return json_digest([*parts, library_hash()] if library else parts, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path | set | frozenset):
        return sorted(map(str, value)) if not isinstance(value, Path) else str(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a cache key; pass a path, an id or a dataclass instead")


def file_hash(path: Path) -> str:
    """Hash of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _on_content_and_flows(context: TaskRunContext, arguments: Mapping[str, Any]) -> str:
    return f"{_on_content(context, arguments)}-{flows_hash()}"


def _on_content(context: TaskRunContext, arguments: Mapping[str, Any]) -> str:
    content = {name: value for name, value in arguments.items() if name not in NOT_CONTENT}
    store = str(Settings.load().store_root)  # a result names what lies there
    return f"{context.task.name.replace(' ', '-')}-{content_key(context.task.name, content, store)}"


ON_CONTENT_AND_FLOWS = CacheKeyFnPolicy(cache_key_fn=_on_content_and_flows)
"""The cache policy of a step whose result depends on its arguments, the library, and the flows' own source."""
