"""Where files rest: a folder of this machine, or anything that fsspec reaches, such as `s3://bucket/prefix`.

Belongs here: the few things that differ between the two. A local place is pathlib's own `Path`, so nothing is slower for
it. Elsewhere a file is written by one PUT, which object stores (S3, GCS, Azure) show whole or not at all; network drives
without that promise (sftp, hdfs) had better be mounted and used as a folder.
"""

import io
import json
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import fsspec
from upath import UPath

Place = Path | UPath
"""A file or folder, here or elsewhere; both kinds know `/`, `name`, `parent`, `exists`, `read_bytes` and `read_text`."""

EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Scheme -> the extra of this package that installs what it needs."""

_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created")  # as the file systems call it


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file as a listing shows it.

    Attributes:
        place: the file.
        size_bytes: of its content.
        modified: when it was written, UTC.
    """

    place: Place
    size_bytes: int
    modified: datetime


def place(address: str, setting: str) -> Place:
    """The folder at a path or URI.

    Args:
        address: what the user wrote.
        setting: where, for the error.

    Raises:
        ValueError: nothing that is installed reaches this kind of address; the message says what to install.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme in ("", "file", "local"):
        local = unquote(urlsplit(address).path) if scheme else address
        return Path(local).expanduser().absolute()
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        extra = EXTRAS.get(scheme)
        advice = f"pip install 'dreamshard[{extra}]'" if extra else f"{error}, or name a folder or an s3:// address"
        raise ValueError(
            f"{setting} is {address!r}, and nothing that is installed here reads {scheme}://, so nothing could be "
            f"kept; {advice}"
        ) from error
    return _elsewhere(address, os.getpid())


@cache
def _elsewhere(address: str, _process: int) -> UPath:
    """One connection for all threads of a process: fsspec's own cache makes one for each, at half a second."""
    found = UPath(address, use_listings_cache=False)  # other hosts write too: a listing must not be an old one
    found.fs.invalidate_cache()  # connects: paths below it share what their folder has
    return found


def failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """What a place raises where it cannot be reached, and `others`, for an `except`; see `dreamshard.files.store_errors`."""
    from dreamshard.files import store_errors  # not before: the package brings torch, which settings do without

    return store_errors.failures(*others)


@cache
def check_writable(folder: Place, setting: str) -> None:
    """Write and remove a file below `folder`, once per process.

    Raises:
        ValueError: that cannot be done; the message says why.
    """
    probe = folder / f"writable.{socket.gethostname()}.{os.getpid()}.tmp"
    try:
        with writing(probe) as file:
            file.write(b"")
        remove([probe])
    except failures() as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{folder} cannot be written ({reason}), so nothing could be kept; make it (a bucket must be there), check "
            f"the credentials and the endpoint in the environment, or point {setting} elsewhere"
        ) from error


def files(folder: Place, pattern: str) -> list[Place]:
    """Files below `folder`, sorted; none where it does not exist.

    Args:
        pattern: of the path below `folder`, part by part, e.g. `testbed=*/*.parquet`; `**/` in front for any depth.
    """
    if isinstance(folder, Path):
        return sorted(folder.glob(pattern))
    found = folder.fs.find(folder.path, prefix=_fixed(pattern))
    return [folder / name for name in _names((_below(path, folder) for path in found), pattern)]


def listing(folder: Place, pattern: str = "**/*") -> list[Entry]:
    """`files` with their sizes and times; one request per thousand files of an object store."""
    if isinstance(folder, Path):
        stats = ((path, path.stat()) for path in sorted(folder.glob(pattern)) if path.is_file())
        return [
            Entry(place=path, size_bytes=stat.st_size, modified=datetime.fromtimestamp(stat.st_mtime, UTC))
            for path, stat in stats
        ]
    found = folder.fs.find(folder.path, detail=True, prefix=_fixed(pattern))
    known = {_below(path, folder): info for path, info in found.items()}
    return [
        Entry(place=folder / name, size_bytes=int(known[name]["size"]), modified=_modified(known[name]))
        for name in _names(known, pattern)
    ]


def read_all(places: Sequence[Place]) -> list[bytes | None]:
    """The content of each, None for what is not there (any more); from elsewhere many are fetched at the same time."""
    if all(isinstance(each, Path) for each in places):
        return [_read_local(each) for each in places]
    paths = [each.path for each in places if isinstance(each, UPath)]
    fs = next(each.fs for each in places if isinstance(each, UPath))
    found = fs.cat(paths, on_error="return")
    contents = [found[fs._strip_protocol(path)] for path in paths]
    for content in contents:
        if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
            raise content
    return [content if isinstance(content, bytes) else None for content in contents]


@contextmanager
def writing(target: Place) -> Iterator[BinaryIO]:
    """A file to write to, which appears as `target` whole when the block ends, or not at all.

    Locally: temporary name, fsync, rename, fsync of the folder. Elsewhere: one PUT of what was written.
    """
    if not isinstance(target, Path):
        content = io.BytesIO()
        yield content
        target.fs.pipe_file(target.path, content.getvalue())
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the rename itself outlives a power cut
    finally:
        os.close(folder)


def write_json(target: Place, content: Any) -> None:
    """Write `content` so that a reader sees all of it or nothing."""
    with writing(target) as file:
        file.write(json.dumps(content, indent=1).encode())


def upload(local: Path, target: Place) -> None:
    """Copy a file of this machine to `target` as it is, however large; it appears whole or not at all."""
    if isinstance(target, Path):
        raise ValueError(f"{target} is a local file, so there is nothing to send; write it there")
    target.fs.put_file(str(local), target.path)


def remove(places: Iterable[Place]) -> None:
    """Remove files; one that is gone already is no error, since several hosts may remove it."""
    elsewhere: list[UPath] = []
    for each in places:
        if isinstance(each, Path):
            each.unlink(missing_ok=True)
        else:
            elsewhere.append(each)
    if elsewhere:
        with suppress(FileNotFoundError):
            elsewhere[0].fs.rm([each.path for each in elsewhere])


def _fixed(pattern: str) -> str:
    """What all matches start with: an object store then lists no more than that."""
    return re.split(r"[*?\[]", pattern)[0]


def _names(names: Iterable[str], pattern: str) -> list[str]:
    """Those that match, sorted."""
    wanted, deep = pattern.removeprefix("**/"), pattern.startswith("**/")
    depth = len(PurePosixPath(wanted).parts)
    split = ((name, PurePosixPath(name)) for name in names)
    return sorted(name for name, path in split if path.match(wanted) and (deep or len(path.parts) == depth))


def _below(path: str, folder: UPath) -> str:
    return path.removeprefix(folder.path.rstrip("/")).lstrip("/")


def _modified(info: dict[str, Any]) -> datetime:
    value = next(info[name] for name in _MODIFIED if info.get(name) is not None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _read_local(path: Place) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
