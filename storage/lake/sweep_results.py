"""Results of sweeps, one file for each cell, which is what an interrupted sweep continues from.

    sweeps/<sweep>/<cell>-<key>.parquet

The key depends on the cell and on the source that computes it, so results of different code never mix.
"""

from collections.abc import Sequence
from dataclasses import fields

from dreamshard.sweep.cell import CellResult
from storage.filesystem import AnyPath
from storage.lake import schemas
from storage.lake.parquet_files import partition, read_parquet, write_rows
from storage.lake.rows import now


def result_path(root: AnyPath, sweep: str, cell: str, key: str) -> AnyPath:
    """The file of a cell below the root of a lake."""
    return partition(root / "sweeps", sweep=sweep) / f"{cell}-{key}.parquet"


def write_results(path: AnyPath, sweep: str, cell: str, commit: str, results: Sequence[CellResult]) -> None:
    """Write what a cell found; the file appears completely or not at all.

    Args:
        commit: of the source that computed it.
    """
    origin = {"sweep": sweep, "cell": cell, "commit": commit, "created_at": now()}
    write_rows(path, [{**result.row(), **origin} for result in results], schemas.SWEEP_RESULTS)


def read_results(path: AnyPath) -> list[CellResult]:
    """What a cell found.

    Raises:
        ValueError: the file cannot be read.
    """
    names = [field.name for field in fields(CellResult)]
    return [CellResult(**row) for row in read_parquet(path, names).to_pylist()]
