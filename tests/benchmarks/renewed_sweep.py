"""Run again, in every kept cell, the systems that are trained as `dreamshard`; the others keep what they did.

    python -m tests.benchmarks.renewed_sweep --experiments sizes,transfer --workers 2

A change of this project's own placer changes no rival that is trained by itself, and training all of them anew takes hours.
So a cell may hold systems of two commits, each row with its own; all that share one training are of the same one. Tasks and
seeds are the same, so placements are still compared on the same tasks. Times are not measured again: the machine is another
one than that of the other systems' times. A system keeps its earlier time, and one that is new to the cell has none.
"""

import argparse
import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamshard.sweep import Cell, CellResult, run_cell
from flows.runtime.source_revision import source_revision
from storage.lake import schemas
from storage.lake.parquet_files import read_parquet, write_rows
from storage.lake.rows import now
from tests.benchmarks.cells_of_home import cell_name
from tests.benchmarks.kept_sweep import FOLDER, designed

_BESIDE = ("cost_greedy", "neuroshard", "neuroshard_columns", "neuroshard_predicted", "neuroshard_predicted_columns")
_REAL_MDP = "_real_mdp"  # measures 50,000 placements, which no change of the placer has changed


def renewed_systems(cell: Cell) -> tuple[str, ...]:
    """Systems of a cell that learn from the measurements, or place by the networks, of `dreamshard`."""
    own = [name for name in cell.systems if name.startswith("dreamshard") and not name.endswith(_REAL_MDP)]
    return (*own, *(name for name in cell.systems if name in _BESIDE))


def renewed_rows(cell: Cell, kept: Sequence[dict[str, Any]], found: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The rows of a cell with those of systems that ran again in place of theirs.

    Args:
        cell: as designed.
        kept: its rows.
        found: what the systems found that ran again.
    """
    times = {(row["placer"], row["placed"], row["task"]): (row["place_ms"], row["learning_s"]) for row in kept}
    origin = {"sweep": kept[0]["sweep"], "cell": cell.name, "commit": source_revision(), "created_at": now()}
    rows = [row for row in kept if row["placer"] not in {result.placer for result in found}]
    for result in found:
        place_ms, learning_s = times.get((result.placer, result.placed, result.task), (math.nan, math.nan))
        rows.append({**replace(result, place_ms=place_ms, learning_s=learning_s).row(), **origin})
    sizes, systems = [str(size) for size in cell.placed], list(cell.systems)
    return sorted(rows, key=lambda row: (sizes.index(row["placed"]), systems.index(row["placer"]), row["task"]))


def renew(cell: Cell, path: Path) -> str:
    """Run the systems of one cell again and write its file anew; returns the cell's name."""
    found = run_cell(replace(cell, systems=renewed_systems(cell)))
    rows = renewed_rows(cell, read_parquet(path).to_pylist(), found)
    renewed = path.with_name(
        f"{cell.name}-renewed.parquet"
    )  # no key: of no single commit, so no sweep continues from it
    write_rows(renewed, rows, schemas.SWEEP_RESULTS)
    if renewed != path:
        path.unlink()
    return cell.name


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.renewed_sweep")
    parser.add_argument("--experiments", default="sizes,transfer,measurements,ablations")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    wanted, revision = given.experiments.split(","), source_revision()
    paths = {cell_name(path): path for path in FOLDER.glob("*.parquet")}
    cells = [cell for cell in designed().cells if cell.experiment in wanted and cell.name in paths]
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=spawned) as pool:
        left = [cell for cell in cells if not _is_of(revision, cell, paths[cell.name])]
        running = [pool.submit(renew, cell, paths[cell.name]) for cell in left]
        for done, ended in enumerate(as_completed(running), start=1):
            print(f"{done} of {len(left)}: {ended.result()}", flush=True)


def _is_of(revision: str, cell: Cell, path: Path) -> bool:
    """Whether the systems of a cell have already run at this commit."""
    rows = read_parquet(path, ["placer", "commit"]).to_pylist()
    done = {row["placer"] for row in rows if row["commit"] == revision}
    return done >= set(renewed_systems(cell))


if __name__ == "__main__":
    main()
