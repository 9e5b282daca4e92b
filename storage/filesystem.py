"""Paths on this machine or on anything that fsspec reads, such as `s3://bucket/prefix`, behind one set of functions.

A local path is a plain `pathlib.Path`. Elsewhere a file is written by one PUT, which object stores (S3, GCS, Azure) show
completely or not at all. Mount network drives that do not promise this (sftp, hdfs) and use them as folders.
"""

import io
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import fsspec
from upath import UPath

from dreamshard.files import atomic

AnyPath = Path | UPath
"""A file or folder; both kinds have `/`, `name`, `parent`, `exists`, `read_bytes` and `read_text`."""

_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created")  # names of the time in file systems

_STORE_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
    "aiohttp": ("ClientError",),
}
"""Of the libraries behind fsspec, none of which needs to be installed."""
_PERMANENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """A listed file; `modified` is UTC."""

    path: AnyPath
    size_bytes: int
    modified: datetime


def parse_address(address: str, setting: str) -> AnyPath:
    """The folder at a path or URI, which the user wrote as the value of `setting`.

    Raises:
        ValueError: no installed package reads this kind of address, and the message says what to install.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme in ("", "file", "local"):
        local = unquote(urlsplit(address).path) if scheme else address
        return Path(local).expanduser().absolute()
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        other = f"{error}, or name a folder or an s3:// address"
        advice = "pip install 'dreamshard[s3]'" if scheme in ("s3", "s3a") else other
        raise ValueError(
            f"{setting} is {address!r}, and nothing that is installed here reads {scheme}://, so nothing could be "
            f"kept; {advice}"
        ) from error
    return _connect(address, os.getpid())


@cache
def _connect(address: str, _process: int) -> UPath:
    """One connection for all threads of a process; fsspec's own cache makes one per thread, half a second each."""
    folder = UPath(address, use_listings_cache=False)  # other hosts write too, so listings must be fresh
    folder.fs.invalidate_cache()  # connects; paths below share the connection
    return folder


def failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Errors of a disk or a store that is unreachable or denies access, and `others`, for an `except`.

    Call it in the `except` clause itself: the library that raised may only just have been loaded.
    """
    loaded = [(sys.modules[module], names) for module, names in _STORE_ERRORS.items() if module in sys.modules]
    return (*others, OSError, *(getattr(module, name) for module, names in loaded for name in names))


def may_pass(error: object) -> bool:
    """Whether a disk, a network or a store raised an error that a retry may avoid."""
    if isinstance(error, OSError) or not isinstance(error, failures()):
        return isinstance(error, OSError) and not isinstance(error, _PERMANENT)
    response = getattr(error, "response", None)  # of botocore's `ClientError`
    if isinstance(response, Mapping):
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
    return "Credential" not in type(error).__name__


@cache
def check_writable(folder: AnyPath, setting: str) -> None:
    """Write and remove a file below `folder`, once per process.

    Raises:
        ValueError: it cannot be written; the message says why.
    """
    probe = folder / f"writable.{socket.gethostname()}.{os.getpid()}.tmp"
    try:
        with writing(probe) as file:
            file.write(b"")
        remove([probe])
    except failures() as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{folder} cannot be written ({reason}), so nothing could be kept; create it (a bucket must exist), check "
            f"the credentials and the endpoint in the environment, or point {setting} elsewhere"
        ) from error


def list_files(folder: AnyPath, pattern: str) -> list[AnyPath]:
    """Files below `folder`, sorted; none if it does not exist.

    Args:
        pattern: glob of the path below `folder`, e.g. `testbed=*/*.parquet`; starts with `**/` for any depth.
    """
    if isinstance(folder, Path):
        return sorted(folder.glob(pattern))
    return [info.path for info in list_file_infos(folder, pattern)]


def list_file_infos(folder: AnyPath, pattern: str = "**/*") -> list[FileInfo]:
    """`list_files` with sizes and times; one request per thousand files of an object store."""
    if isinstance(folder, Path):
        stats = ((path, path.stat()) for path in sorted(folder.glob(pattern)) if path.is_file())
        return [
            FileInfo(path=path, size_bytes=stat.st_size, modified=datetime.fromtimestamp(stat.st_mtime, UTC))
            for path, stat in stats
        ]
    prefix = re.split(r"[*?\[]", pattern)[0]  # shared by all matches, so that an object store lists nothing else
    details = folder.fs.find(folder.path, detail=True, prefix=prefix)
    by_name = {path.removeprefix(folder.path.rstrip("/")).lstrip("/"): info for path, info in details.items()}
    return [
        FileInfo(path=folder / name, size_bytes=int(by_name[name]["size"]), modified=_modification_time(by_name[name]))
        for name in _matching(by_name, pattern)
    ]


def read_files(paths: Sequence[AnyPath]) -> list[bytes | None]:
    """The content of each file, None where it does not exist (any more); remote files are fetched in parallel."""
    remote = [path for path in paths if isinstance(path, UPath)]
    if not remote:
        return [_read_local(path) for path in paths]
    fs = remote[0].fs
    fetched = fs.cat([path.path for path in remote], on_error="return")
    contents = [fetched[path.path] for path in remote]
    for content in contents:
        if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
            raise content
    return [content if isinstance(content, bytes) else None for content in contents]


@contextmanager
def writing(target: AnyPath) -> Iterator[BinaryIO]:
    """Yield a file that becomes `target` when the block ends without an error: by a rename here, by one PUT elsewhere."""
    if isinstance(target, Path):
        with atomic.replacing(target) as temporary, temporary.open("wb") as file:
            yield file
    else:
        content = io.BytesIO()
        yield content
        target.fs.pipe_file(target.path, content.getvalue())


def write_json(target: AnyPath, content: Any) -> None:
    """Write `content`; a reader sees all of it or nothing."""
    with writing(target) as file:
        file.write(json.dumps(content, indent=1).encode())


def read_json(path: AnyPath) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def remove(paths: Iterable[AnyPath]) -> None:
    """Remove files; missing ones are no error, since several hosts may remove the same file."""
    remote: list[UPath] = []
    for path in paths:
        if isinstance(path, Path):
            path.unlink(missing_ok=True)
        else:
            remote.append(path)
    if remote:
        with suppress(FileNotFoundError):
            remote[0].fs.rm([path.path for path in remote])


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    tail, any_depth = pattern.removeprefix("**/"), pattern.startswith("**/")
    depth = len(PurePosixPath(tail).parts)
    paths = ((name, PurePosixPath(name)) for name in names)
    return sorted(name for name, path in paths if path.match(tail) and (any_depth or len(path.parts) == depth))


def _modification_time(info: dict[str, Any]) -> datetime:
    """When a file was changed last, in UTC, by what fsspec says of it."""
    value = next(info[name] for name in _MODIFIED if info.get(name) is not None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _read_local(path: AnyPath) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
