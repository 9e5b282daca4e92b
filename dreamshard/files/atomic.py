"""Files of this machine that appear whole or not at all.

A killed writer leaves at most a temporary file whose name ends in `.tmp`, which no reader opens.
"""

import os
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
