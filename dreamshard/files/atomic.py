"""Files and folders of this machine that appear whole or not at all.

Everything is written under a temporary name that ends in `.tmp` and renamed. A killed writer leaves at most that temporary
entry, which no reader opens.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path for a library to write; it becomes `target` when the block ends without an error.

    The name is `.<target>.<process>.<thread>.tmp`; libraries that read a whole folder skip names that begin with a dot.
    Missing parent folders are made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(target: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `target` when the block ends without an error."""
    with replacing(target) as temporary, temporary.open("wb") as file:
        yield file


def write(target: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8."""
    with writing(target) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error.

    A folder cannot be renamed over another, so the old one is moved aside first: read with `complete_folder`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    replaced = target.with_name(f"{target.name}.{os.getpid()}.replaced.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, others need its space
        raise
    if target.exists():
        target.rename(replaced)
    temporary.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def complete_folder(target: Path) -> Path:
    """`target`, or its last complete version if a writer was killed between the two renames of `replacing_folder`."""
    if target.exists():
        return target
    return max(target.parent.glob(f"{target.name}.*.replaced.tmp"), default=target)


def check_output(target: Path, what: str, option: str = "--out") -> None:
    """Check, before any work, that the file that a person names can be written.

    Args:
        target: the path.
        what: for the message, e.g. `plan`.
        option: where the path was given.

    Raises:
        ValueError: it is a folder, or its folder does not exist.
    """
    if target.is_dir():
        raise ValueError(f"{target} is a folder, so the {what} cannot be written; give {option} the path of a file")
    if not target.parent.is_dir():
        raise ValueError(f"the folder {target.parent} does not exist; make it, or give {option} another for the {what}")


def write_output(target: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a path that a person names; a device or pipe gets the bytes.

    Raises:
        ValueError: it cannot be written.
    """
    try:
        if target.exists() and not target.is_file():
            with target.open("ab") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        else:
            write(target, content)
    except OSError as error:
        raise ValueError(f"{target} cannot be written ({error.strerror or error}); name another file") from error
