"""Where a source lies: a path or any fsspec URI, a file or a folder.

Belongs here: what is there, cheap marks of whether it changed, and a local copy for readers that take a path. What the
files mean is the readers' business.
"""

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
"""What stores call the checksum of a file that they list."""

TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def is_folder(source: str) -> bool:
    """Whether `source` is a folder, or a prefix of a bucket with something below it."""
    return bool(_asked(source, lambda system, path: system.isdir(path)))


def is_file(source: str) -> bool:
    """Whether `source` is a file."""
    return bool(_asked(source, lambda system, path: system.isfile(path)))


def files_in(folder: str) -> dict[str, str]:
    """Name and mark of every file directly in a folder, by name; the mark changes when the file does.

    Raises:
        ValueError: the folder cannot be listed.
    """

    def listed(system: Any, path: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = system.ls(path, detail=True)
        return [each for each in found if each["type"] == "file" and each["name"].rstrip("/") != path.rstrip("/")]

    files = _asked(folder, listed)
    return dict(sorted((_name(entry["name"]), _mark(entry)) for entry in files))


def mark(source: str) -> str:
    """The mark of one file: its checksum where the store lists one, else its size and time of change."""
    return _asked(source, lambda system, path: _mark(system.info(path)))


def beside(source: str, name: str) -> str:
    """The file called `name` in the folder of the file `source`."""
    head, separator, _ = source.rpartition("/")
    return f"{head}{separator}{name}"


def inside(folder: str, name: str) -> str:
    """The file called `name` in `folder`."""
    return f"{folder.rstrip('/')}/{name}"


@contextmanager
def local_copy(source: str, *also: str) -> Iterator[Path]:
    """`source` as a local path, a copy of it for the block where it is not local; errors name `source` all the same.

    Args:
        source: a file.
        also: files that must lie beside it.
    """
    local = _local(source)
    if local is not None:
        yield local
        return
    with TemporaryDirectory() as folder:
        copies = {each: Path(folder) / _name(each) for each in (source, *also)}
        for each, copy in copies.items():
            _asked(each, lambda system, path, copy=copy: system.get_file(path, str(copy)))  # type: ignore[misc]
        try:
            yield copies[source]
        except ValueError as error:
            text = str(error)
            for each, copy in copies.items():
                text = text.replace(str(copy), each)
            raise ValueError(text) from error


def _asked(source: str, question: Callable[[Any, str], Result]) -> Result:
    """What the file system of `source` answers.

    Raises:
        ValueError: there is no such kind of store, its package is missing, or it does not answer or let one in.
    """
    try:
        system, path = fsspec.core.url_to_fs(source)
        system.invalidate_cache()  # stores remember what they listed; a source is looked at because it may have changed
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
    """The path of `source`, or None where it is not local."""
    if "://" not in source:
        return Path(source)
    system, path = _asked(source, lambda system, path: (system, path))
    return Path(path) if isinstance(system, LocalFileSystem) else None


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _mark(entry: Mapping[str, Any]) -> str:
    checksum = next((str(entry[key]) for key in CHECKSUMS if entry.get(key)), None)
    changed = next((str(entry[key]) for key in TIMES if entry.get(key)), "")
    return checksum or f"{entry.get('size')} {changed} {entry.get('ino', '')}"
