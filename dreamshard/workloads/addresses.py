"""Where a source is: the one spelling by which it is known, and its files at a path or any fsspec address."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dreamshard.files.foreign import store_failures
from dreamshard.workloads.functions import is_function
from dreamshard.workloads.workload import bundled_workloads

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")


def known_as(source: str) -> str:
    """The one spelling of a source by which dreamshard knows it, compares it and writes it down.

    - A bundled workload's name stays, even if a file has that name: `./criteo` is the file.
    - A path becomes absolute, also that of a function's file; a symbolic link keeps its own path, since it may point
      elsewhere tomorrow. A `file://` address becomes its path.
    - Other addresses (`s3://bucket/tables/`) lose trailing slashes.
    - Anything else stays, such as a function in a module, or a misspelt name, which opening it reports.
    """
    source = source.strip()
    if source.lower().startswith("file://"):
        return _absolute(unquote(urlsplit(source).path))
    if _ADDRESS.match(source):
        scheme, _, rest = source.partition("://")
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    place, _, name = source.rpartition(":")
    if is_function(source):
        return f"{_absolute(place)}:{name}" if place.endswith(".py") else source
    if source in bundled_workloads() or "::" in source:  # which chains fsspec's file systems
        return source
    return _absolute(source) if "/" in source or "." in source or Path(source).exists() else source


def is_folder(source: str) -> bool:
    """Whether `source` is a folder, or a prefix of a bucket with something below it."""
    with _store(source) as (system, path):
        return bool(system.isdir(path))


def is_file(source: str) -> bool:
    """Whether `source` is a file."""
    with _store(source) as (system, path):
        return bool(system.isfile(path))


def files_in(folder: str) -> dict[str, str]:
    """Name -> change token of every file directly in a folder, sorted by name.

    Raises:
        ValueError: the folder cannot be listed.
    """
    with _store(folder) as (system, path):
        entries = [entry for entry in system.ls(path, detail=True) if entry["type"] == "file"]
    files = ((entry["name"].rstrip("/"), entry) for entry in entries)
    return dict(sorted((file_name(file), _token(entry)) for file, entry in files if file != path.rstrip("/")))


def file_token(source: str) -> str:
    """A file's checksum if the store lists one, else its size and modification time."""
    with _store(source) as (system, path):
        return _token(system.info(path))


def inside(folder: str, name: str) -> str:
    """The file `name` in `folder`."""
    return f"{folder.rstrip('/')}/{name}"


def file_name(path: str) -> str:
    """The last part of a path or address."""
    return path.rstrip("/").rpartition("/")[2]


@contextmanager
def local_copy(source: str, *companions: str) -> Iterator[Path]:
    """Yield `source` as a local path, copied for the block if it is remote; errors still name `source`.

    Args:
        source: a file.
        companions: files that must be beside it.
    """
    with _store(source) as (system, path):
        is_local = isinstance(system, LocalFileSystem)
    if is_local:
        yield Path(path if "://" in source else source)
        return
    with TemporaryDirectory() as folder:
        copies = {file: Path(folder) / file_name(file) for file in (source, *companions)}
        for file, copy in copies.items():
            with _store(file) as (system, path):
                system.get_file(path, str(copy))
        try:
            yield copies[source]
        except ValueError as error:
            raise ValueError(str(error).replace(folder, source.rpartition("/")[0])) from error


@contextmanager
def _store(source: str) -> Iterator[tuple[Any, str]]:
    """The file system of `source` and the path in it; the block asks it.

    Raises:
        ValueError: the store is of an unknown kind, its package is missing, or it cannot be reached or refuses access.
    """
    try:
        system, path = fsspec.core.url_to_fs(source)
        system.invalidate_cache()  # fsspec caches listings, but the source may have changed
        yield system, path
    except ImportError as error:
        raise ValueError(f"{source} cannot be read without one more package ({error}); install it") from error
    except store_failures(ValueError) as error:
        raise ValueError(
            f"{source} cannot be read ({type(error).__name__}: {str(error)[:200]}), so there are no tables to ingest; "
            "check the address, that you may read it, and that its store is up"
        ) from error


def _token(entry: Mapping[str, Any]) -> str:
    """A checksum if the store lists one (S3, Google, Azure), else size, time and number of the file."""
    checksum = entry.get("ETag") or entry.get("md5Hash") or entry.get("content_md5")
    changed = entry.get("mtime") or entry.get("LastModified") or entry.get("created")
    return str(checksum or f"{entry.get('size')} {changed} {entry.get('ino', '')}")


def _absolute(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - `resolve` would follow links
