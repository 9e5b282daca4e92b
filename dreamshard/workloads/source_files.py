"""Files and folders of a source, at a path or any fsspec URI: what exists, change tokens, and local copies for readers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dreamshard.files.store_errors import failures

Result = TypeVar("Result")

CHECKSUMS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""Names of a file's checksum in the listings of different stores."""

TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def is_folder(source: str) -> bool:
    """Whether `source` is a folder, or a prefix of a bucket with something below it."""
    return bool(_query(source, lambda system, path: system.isdir(path)))


def is_file(source: str) -> bool:
    """Whether `source` is a file."""
    return bool(_query(source, lambda system, path: system.isfile(path)))


def files_in(folder: str) -> dict[str, str]:
    """Name -> change token of every file directly in a folder, sorted by name.

    Raises:
        ValueError: the folder cannot be listed.
    """

    def files(system: Any, path: str) -> list[Mapping[str, Any]]:
        entries: list[Mapping[str, Any]] = system.ls(path, detail=True)
        return [entry for entry in entries if entry["type"] == "file" and entry["name"].rstrip("/") != path.rstrip("/")]

    return dict(sorted((_name(entry["name"]), _token(entry)) for entry in _query(folder, files)))


def change_token(source: str) -> str:
    """A file's checksum if the store lists one, else its size and modification time."""
    return _query(source, lambda system, path: _token(system.info(path)))


def beside(source: str, name: str) -> str:
    """The file `name` in the folder of the file `source`."""
    head, separator, _ = source.rpartition("/")
    return f"{head}{separator}{name}"


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
    local = _local(source)
    if local is not None:
        yield local
        return
    with TemporaryDirectory() as folder:
        copies = {file: Path(folder) / _name(file) for file in (source, *companions)}
        for file, copy in copies.items():
            _query(file, lambda system, path, copy=copy: system.get_file(path, str(copy)))  # type: ignore[misc]
        try:
            yield copies[source]
        except ValueError as error:
            text = str(error)
            for file, copy in copies.items():
                text = text.replace(str(copy), file)
            raise ValueError(text) from error


def _query(source: str, question: Callable[[Any, str], Result]) -> Result:
    """Call `question` with the file system of `source` and the path in it.

    Raises:
        ValueError: the store is of an unknown kind, its package is missing, or it cannot be reached or refuses access.
    """
    try:
        system, path = fsspec.core.url_to_fs(source)
        system.invalidate_cache()  # fsspec caches listings, but the source may have changed
        return question(system, path)
    except ImportError as error:
        raise ValueError(
            f"{source} cannot be read without one more package ({error}), so there are no tables to ingest; install it"
        ) from error
    except failures(ValueError) as error:
        raise ValueError(
            f"{source} cannot be read ({type(error).__name__}: {str(error)[:200]}), so there are no tables to ingest; "
            "check the address, that you may read it, and that its store is up"
        ) from error


def _local(source: str) -> Path | None:
    """The path of `source`, or None if it is remote."""
    if "://" not in source:
        return Path(source)
    system, path = _query(source, lambda system, path: (system, path))
    return Path(path) if isinstance(system, LocalFileSystem) else None


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _token(entry: Mapping[str, Any]) -> str:
    checksum = next((str(entry[key]) for key in CHECKSUMS if entry.get(key)), None)
    changed = next((str(entry[key]) for key in TIMES if entry.get(key)), "")
    return checksum or f"{entry.get('size')} {changed} {entry.get('ino', '')}"
