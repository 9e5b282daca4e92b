"""What a source is known by, however it is spelt: `tables.csv`, `./tables.csv` and the full path are one."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dreamshard.workloads.config import bundled_workloads
from dreamshard.workloads.functions import is_function

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")


def known_as(source: str) -> str:
    """The one spelling of a source by which dreamshard knows it, compares it and writes it down.

    - A bundled workload's name stays, even where a file has that name: `./criteo` is the file.
    - A path becomes absolute, without `.`, `..` and trailing slashes. A symbolic link is known by its own path, since what it
      points to may be another file tomorrow; only `link/..` is followed, as the file system does.
    - A `file://` address becomes its path; other addresses (`s3://bucket/tables/`) lose trailing slashes.
    - A function in a file has the file's absolute path; one in a module stays.
    - Anything else stays, such as a misspelt name of a bundled workload, which opening it reports.
    """
    source = source.strip()
    if source in bundled_workloads():
        return source
    if source.lower().startswith("file://"):
        return _absolute(unquote(urlsplit(source).path))
    if _ADDRESS.match(source):
        scheme, _, rest = source.partition("://")
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    if is_function(source):
        place, _, name = source.rpartition(":")
        return f"{_absolute(place)}:{name}" if place.endswith(".py") else source
    if "::" in source:  # fsspec's chains of file systems
        return source
    is_path = "/" in source or "." in source or Path(source).exists()
    return _absolute(source) if is_path else source


def _absolute(path: str) -> str:
    written = Path(path).expanduser().absolute()
    lexical = Path(os.path.normpath(written))
    if ".." in written.parts and not _is_same(written, lexical):
        return str(written.parent.resolve() / written.name)
    return str(lexical)


def _is_same(written: Path, lexical: Path) -> bool:
    """Whether dropping `link/..` leads to the same file; also where there is none."""
    return not written.exists() or (lexical.exists() and written.samefile(lexical))
