"""Files that a person names, such as `--out`: written as what the path is.

A regular file, or none yet, appears whole or not at all, where symbolic links lead. Devices, pipes and the open files of
this process (`/dev/null`, `/dev/stdout`, `>(command)`, `mkfifo`) receive the bytes and stay what they are. Files of the
store, which nobody names, are written by `atomic`.
"""

import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dreamshard.files import atomic

_OPEN_FILE = re.compile(r"/(?:dev|proc/(?:self|thread-self|\d+))/fd/(\d+)")
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40  # as Linux follows


def check(target: Path, what: str, option: str = "--out") -> None:
    """Check, before any work, that `target` can be written.

    Args:
        what: what is written, e.g. `plan`.
        option: where the path was given.

    Raises:
        ValueError: it is a folder, its folder does not exist, or it or its folder may not be written.
    """
    advice = f"so the {what} cannot be written to {target}; give {option} another path"
    if _open_file(target) is not None:
        return
    if target.is_dir():
        raise ValueError(
            f"{target} is a folder, so the {what} cannot be written to it; give {option} the path of a file"
        )
    if target.exists():
        if not os.access(target, os.W_OK):
            raise ValueError(f"{target} may not be written by this user, {advice}, or change its permissions")
        return
    folder = _followed(target).parent
    if not folder.is_dir():
        raise ValueError(f"the folder {folder} does not exist, {advice}, or make the folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the folder {folder} may not be written by this user, {advice}, or change its permissions")


def write(target: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8.

    Raises:
        ValueError: it cannot be written.
    """
    with writing(target) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(target: Path) -> Iterator[BinaryIO]:
    """Yield a file, in which one may seek; its content goes to `target` when the block ends without an error.

    Raises:
        ValueError: `target` cannot be written.
    """
    content = io.BytesIO()
    yield content
    try:
        _put(target, content.getvalue())
    except OSError as error:
        error.filename = error.filename or str(target)  # which the system leaves out where writing fails, not opening
        raise ValueError(
            f"{target} cannot be written ({error.strerror or error}), so its content is lost; name another file"
        ) from error


def _put(target: Path, content: bytes) -> None:
    handle = _open_file(target)
    if handle is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what was printed before comes before
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        return
    target = _followed(target)
    if not _is_replaceable(target):
        _write_into(target, content)
        return
    try:
        atomic.write(target, content)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a file mounted into a container, which no other may replace
            raise
        _write_into(target, content)


def _write_into(target: Path, content: bytes) -> None:
    regular = stat.S_ISREG(target.stat().st_mode)
    with os.fdopen(os.open(target, os.O_WRONLY | (os.O_TRUNC if regular else 0)), "wb") as file:
        file.write(content)


def _is_replaceable(target: Path) -> bool:
    """Whether another file may take the name: not where it is no regular file, has other names, or is not ours to replace.

    Raises:
        PermissionError: the file may not be written, though its folder may.
    """
    try:
        found = target.stat()
    except FileNotFoundError:
        return True
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.access(target.parent, os.W_OK | os.X_OK)


def _open_file(target: Path) -> int | None:
    """The number of the open file of this process that the path names; opening it anew would begin at its start."""
    for path in _links(target):
        if str(path) in _STANDARD:
            return _STANDARD[str(path)]
        found = _OPEN_FILE.fullmatch(str(path))
        if found and path.parts[2] in ("fd", "self", "thread-self", str(os.getpid())):
            return int(found[1])
    return None


def _followed(target: Path) -> Path:
    """The path that links lead to, which need not exist."""
    return Path(os.path.realpath(target))


def _links(target: Path) -> Iterator[Path]:
    """The absolute path, and every path that its last part leads to by a symbolic link."""
    path = target.absolute()
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
