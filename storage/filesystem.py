"""Paths on this machine or on anything that fsspec reads, such as `s3://bucket/prefix`, behind one set of functions.

A local path is a plain `pathlib.Path`. Elsewhere a file is written by one PUT, which object stores (S3, GCS, Azure) show
completely or not at all. Mount network drives that do not promise this (sftp, hdfs) and use them as folders.
"""

import glob
import io
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from upath import UPath

from dreamshard.files import replacing

AnyPath = Path | UPath
"""A file or folder; both kinds have `/`, `name`, `parent`, `exists`, `read_bytes` and `read_text`."""

_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created")  # names of the time in file systems
_STORES = ("botocore", "google", "azure", "aiohttp")  # packages behind fsspec, some of whose errors are no `OSError`
_CONNECTIONS = 16
_PERMANENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


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
        return _connect(address, os.getpid())
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"{setting} is {address!r}, which no installed package reads ({error}); for s3:// `pip install "
            "'dreamshard[s3]'`, or name a folder"
        ) from error


@cache
def _connect(address: str, _process: int) -> UPath:
    """One connection for all threads of a process; fsspec's own cache makes one per thread, half a second each."""
    folder = UPath(address, use_listings_cache=False)  # other hosts write too, so listings must be fresh
    folder.fs.invalidate_cache()  # connects; paths below share the connection
    return folder


def may_pass(error: object) -> bool:
    """Whether a disk, a network or a store raised an error that a retry may avoid."""
    if isinstance(error, OSError):
        return not isinstance(error, _PERMANENT)
    kind = type(error)
    return kind.__module__.partition(".")[0] in _STORES and "Credential" not in kind.__name__


def check_writable(folder: AnyPath, setting: str) -> None:
    """Write and remove a file below `folder`, as permission bits alone do not show whether a file system accepts files.

    Raises:
        ValueError: it cannot be written; the message says why.
    """
    probe = folder / f"writable.{socket.gethostname()}.{os.getpid()}.tmp"
    try:
        with writing(probe) as file:
            file.write(b"")
        remove([probe])
    except Exception as error:  # every store has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{folder} cannot be written ({reason}); create the bucket, check permissions or credentials and the endpoint, "
            f"or point {setting} elsewhere"
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
    listed = UPath(folder)
    root = listed.path.rstrip("/")
    entries = listed.fs.glob(f"{glob.escape(root)}/{pattern}", detail=True)
    return [
        FileInfo(
            path=folder / name.removeprefix(root).lstrip("/"),
            size_bytes=int(info["size"]),
            modified=_modification_time(info),
        )
        for name, info in sorted(entries.items())
        if info["type"] == "file"
    ]


def read_files(paths: Sequence[AnyPath]) -> list[bytes | None]:
    """The content of each file, None if it does not exist (any more), fetched in parallel."""
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        return list(threads.map(_content, paths))


@contextmanager
def writing(target: AnyPath) -> Iterator[BinaryIO]:
    """Yield a file that becomes `target` when the block ends without an error: by a rename here, by one PUT elsewhere."""
    if isinstance(target, Path):
        with replacing(target) as temporary, temporary.open("wb") as file:
            yield file
    else:
        content = io.BytesIO()
        yield content
        target.fs.pipe_file(target.path, content.getvalue())


def write_text(target: AnyPath, text: str) -> None:
    """Write a text; a reader sees all of it or nothing."""
    with writing(target) as file:
        file.write(text.encode())


def write_json(target: AnyPath, content: Any) -> None:
    """Write `content` as `write_text` does."""
    write_text(target, json.dumps(content, indent=1))


def read_json(path: AnyPath) -> Any:
    """Content of a file by `write_json`."""
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


def _modification_time(info: dict[str, Any]) -> datetime:
    """When a file was changed last, in UTC, according to fsspec."""
    value = next(info[name] for name in _MODIFIED if info.get(name) is not None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _content(path: AnyPath) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None
