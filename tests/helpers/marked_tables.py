"""Tables of a Markdown page between two markers, each under its own heading, which commands write one by one."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def write(path: Path, marker: str, heading: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Replace these tables between the two markers of `path`; other tables stay, sorted by name.

    Args:
        marker: a line, twice in the file.
        heading: `##` or `###`.
        tables: lines by name, the heading first.

    Raises:
        ValueError: the file does not have exactly two markers.
    """
    parts = path.read_text().split(marker)
    if len(parts) != 3:
        raise ValueError(
            f"{path} has {len(parts) - 1} markers {marker}, so it is not clear what to replace; put one before and one "
            "after the place for the tables"
        )
    there = {text.split("\n", 1)[0]: f"{heading} {text}".strip() for text in parts[1].split(f"{heading} ")[1:]}
    there |= {name: "\n".join(lines) for name, lines in tables.items()}
    parts[1] = "\n" + "\n\n".join(there[name] for name in sorted(there)) + "\n"
    path.write_text(marker.join(parts))
