"""Files and folders of a source, at a path or any fsspec URI: what exists, change tokens, and local copies for readers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dreamshard.files.store_errors import failures

CHECKSUMS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""Names of a file's checksum in the listings of different stores."""

TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


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
    return dict(sorted((_name(file), _token(entry)) for file, entry in files if file != path.rstrip("/")))


def change_token(source: str) -> str:
    """A file's checksum if the store lists one, else its size and modification time."""
    with _store(source) as (system, path):
        return _token(system.info(path))


def inside(folder: str, name: str) -> str:
    """The file `name` in `folder`."""
    return f"{folder.rstrip('/')}/{name}"


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
        copies = {file: Path(folder) / _name(file) for file in (source, *companions)}
        for file, copy in copies.items():
            with _store(file) as (system, path):
                system.get_file(path, str(copy))
        try:
            yield copies[source]
        except ValueError as error:
            text = str(error)
            for file, copy in copies.items():
                text = text.replace(str(copy), file)
            raise ValueError(text) from error


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
        raise ValueError(
            f"{source} cannot be read without one more package ({error}), so there are no tables to ingest; install it"
        ) from error
    except failures(ValueError) as error:
        raise ValueError(
            f"{source} cannot be read ({type(error).__name__}: {str(error)[:200]}), so there are no tables to ingest; "
            "check the address, that you may read it, and that its store is up"
        ) from error


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _token(entry: Mapping[str, Any]) -> str:
    checksum = next((str(entry[key]) for key in CHECKSUMS if entry.get(key)), None)
    changed = next((str(entry[key]) for key in TIMES if entry.get(key)), "")
    return checksum or f"{entry.get('size')} {changed} {entry.get('ino', '')}"
