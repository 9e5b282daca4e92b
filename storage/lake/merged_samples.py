"""Files of cost samples of several runs, which compaction makes of many small ones.

    cost_samples/<testbed>/<dataset version>/+merged.<content>.parquet

Other files are named by their run, in which `+` is escaped, so no run has this name. Rows are sorted by run, so a reader
of one run skips the rest of the file.
"""

from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from storage.filesystem import AnyPath, list_files
from storage.lake.parquet_files import read_parquet, read_parquet_files

MERGED = "+merged"


def sample_files(folder: AnyPath, runs: str, depth: str = "") -> tuple[list[AnyPath], list[AnyPath]]:
    """Files of a run or of `*`, all, below a folder; and those of several runs, which may hold rows of it.

    Args:
        runs: beginning of the files' names before a dot: a quoted run, with or without its iteration.
        depth: pattern of the folders between, such as `*/*/`.
    """
    merged = list_files(folder, f"{depth}{MERGED}.*.parquet") if isinstance(folder, Path) else []  # none in buckets
    own = list_files(folder, f"{depth}{runs}.*.parquet")
    return [path for path in own if not is_merged(path)], merged


def read_samples(
    folder: AnyPath,
    run_key: str | None,
    iteration: int | None = None,
    *,
    columns: list[str] | None = None,
    depth: str = "",
) -> list[pa.Table]:
    """Rows of cost samples below a folder, those of one run and iteration or of all.

    Args:
        iteration: of the run; None for all.
        columns: those to read; None for all.
        depth: as for `sample_files`.

    Raises:
        ValueError: a file cannot be read.
    """
    prefix = "*" if run_key is None else quote(run_key, safe="")
    own, merged = sample_files(folder, prefix if iteration is None else f"{prefix}.{iteration:04}", depth)
    wanted = None if run_key is None else pc.field("run_key") == run_key
    if wanted is not None and iteration is not None:
        wanted = wanted & (pc.field("iteration") == iteration)
    return [*read_parquet_files(own, columns), *read_parquet_files(merged, columns, wanted)]


def runs_of(path: AnyPath) -> list[str]:
    """The runs with rows in a file of cost samples.

    Raises:
        ValueError: the file cannot be read.
    """
    if not is_merged(path):
        return [unquote(path.name.split(".")[0])]
    return sorted(pc.unique(read_parquet(path, ["run_key"]).column("run_key")).to_pylist())


def is_merged(path: AnyPath) -> bool:
    """Whether the file holds rows of several runs."""
    return path.name.startswith(f"{MERGED}.")
