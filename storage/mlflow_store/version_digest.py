"""The digest of all files of a version: its code, which a server runs, and all that this code reads."""

import hashlib
import json
import logging
import re
from pathlib import Path

logger = logging.getLogger(__name__)

_BESIDE = "registered_model_meta"  # which MLflow writes into each copy
_DESCRIPTION = "MLmodel"
_ADDRESS = re.compile(rb"\Aartifact_path: (?:[^\r\n\xc2\xe2]|\xc2(?!\x85)|\xe2(?!\x80[\xa8\xa9]))*\n")
"""Of that file, up to whatever ends a line of YAML: it changes as a home is moved, and nothing reads it."""


def files_digest(folder: Path) -> str:
    """The SHA-256 of the names and contents of all files of a version's folder."""
    digests = {
        path.relative_to(folder).as_posix(): hashlib.sha256(_content(folder, path)).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / _BESIDE
    }
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def check_copy(folder: Path, version: str, expected: str | None) -> None:
    """Check a copy of all files of a version, and remove from it what MLflow put beside them.

    Args:
        folder: the copy.
        version: reference to it, for messages.
        expected: by `files_digest`; None where an earlier release registered it, so that nothing is known.

    Raises:
        ValueError: a file was changed, added or removed.
    """
    (folder / _BESIDE).unlink(missing_ok=True)
    if expected is None:
        logger.warning(
            "version %s was registered by an earlier release without a digest of all its files: a change of its code would "
            "not be noticed",
            version,
        )
        return
    if (found := files_digest(folder)) != expected:
        raise ValueError(
            f"the files of version {version} are not those that were registered: their SHA-256 is {found}, not {expected}, "
            "so its code may do anything; restore them, or use another version"
        )


def _content(folder: Path, path: Path) -> bytes:
    content = path.read_bytes()
    return _ADDRESS.sub(b"", content) if path == folder / _DESCRIPTION else content
