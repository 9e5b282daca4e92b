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


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path to write; it becomes `target` when the block ends without an error.

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
