"""Files that a person names, such as `--out`: a regular file appears whole or not at all, a device or pipe gets the bytes."""

from pathlib import Path

from dreamshard.files import atomic


def check(target: Path, what: str, option: str = "--out") -> None:
    """Check, before any work, that `target` can be written.

    Args:
        target: the path.
        what: what is written, e.g. `plan`.
        option: where the path was given.

    Raises:
        ValueError: it is a folder, or its folder does not exist.
    """
    if target.is_dir():
        raise ValueError(f"{target} is a folder, so the {what} cannot be written; give {option} the path of a file")
    if not target.parent.is_dir():
        raise ValueError(
            f"the folder {target.parent} does not exist, so the {what} cannot be written; make it, or give {option} another"
        )


def write(target: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8.

    Raises:
        ValueError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if str(target).startswith("/dev/") or (target.exists() and not target.is_file()):
            with target.open("ab") as file:
                file.write(data)
        else:
            atomic.write(target, data)
    except OSError as error:
        raise ValueError(f"{target} cannot be written ({error.strerror or error}); name another file") from error
