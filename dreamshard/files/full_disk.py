"""A disk without space: how libraries report it, and the one sentence for people.

Only the system's own errors carry a number; databases and writers of other languages say it in words, which a server then
repeats inside an error of its own. Some say only that writing failed, so the free space is checked as well.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WORDS = (
    os.strerror(errno.ENOSPC),  # DuckDB, safetensors, pyarrow
    os.strerror(errno.EDQUOT),
    os.strerror(errno.EFBIG),
    "database or disk is full",  # SQLite, and MLflow and Prefect on top of it
)
_LITTLE_BYTES = 2**20  # less than a database needs for its next transaction


class FullDiskError(OSError):
    """Something could not be written for lack of space; the message is a sentence for people."""


def is_reported(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that a disk or a quota is full."""
    return any(
        getattr(link, "errno", None) in _NUMBERS or any(words in str(link) for words in _WORDS)
        for link in _chain(error)
    )


def sentence(error: BaseException, folders: Sequence[Path]) -> str | None:
    """What to tell people about an error that comes from a full disk; None for other errors.

    Args:
        error: anything that a command or a flow ended with.
        folders: what it writes to. One with less than 1 MiB free is named where the error names no file, and explains errors
            that do not say what was wrong, such as a server's answer 500; `ValueError`, which says it, needs no such
            explanation.
    """
    known = next((link for link in _chain(error) if isinstance(link, FullDiskError)), None)
    if known is not None:
        return str(known)
    named = [getattr(link, "filename", None) for link in _chain(error) if getattr(link, "errno", None) in _NUMBERS]
    file = next((Path(os.fsdecode(name)) for name in named if isinstance(name, str | bytes)), None)
    free_bytes = {folder: free for folder in folders if (free := _free_bytes(folder)) is not None}
    full = {folder: free for folder, free in free_bytes.items() if free < _LITTLE_BYTES}
    least = min(full, key=lambda folder: full[folder], default=None)
    if not is_reported(error) and (isinstance(error, ValueError) or least is None):
        return None
    disk = "a disk" if (file or least) is None else f"the disk of {file or least}"
    left = "" if least is None or file else f" ({full[least] / 2**10:,.0f} KiB are free)"
    return (
        f"{disk} is full{left}, so nothing more could be written; what was finished before is complete: free some space (on "
        "the disk of the home, e.g. with `dreamshard prune`), and run the same command again, which continues from there"
    )


def explained(error: Exception, folders: Sequence[Path] = ()) -> Exception:
    """`error`, or a `FullDiskError` with the sentence if it comes from a full disk."""
    if isinstance(error, FullDiskError):
        return error
    found = sentence(error, folders)
    return error if found is None else FullDiskError(found)


def check(folder: Path, needed_bytes: int, what: str) -> None:
    """Check that there is space before starting what would otherwise fail halfway or wait in vain.

    Args:
        folder: where it will be written.
        needed_bytes: the least that it needs.
        what: subject of the error message.

    Raises:
        FullDiskError: there is less.
    """
    free = _free_bytes(folder)
    if free is not None and free < needed_bytes:
        raise FullDiskError(
            f"the disk of {folder} has {free / 2**20:.1f} MiB free and {what} needs {needed_bytes / 2**20:.0f} MiB at least, "
            "so nothing was started; free some space, e.g. with `dreamshard prune`, and run the same command again"
        )


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # not made yet, or gone
        return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
