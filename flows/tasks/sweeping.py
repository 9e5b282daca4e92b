"""Prefect tasks of a sweep: one for each cell, and one that shows the figures."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from prefect import get_run_logger
from prefect.futures import PrefectFuture, as_completed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from dreamshard.formatting import error_sentence
from dreamshard.sweep import Cell, CellResult, Sweep, run_cell
from flows.reports import sweep_page
from flows.runtime.content_keys import content_key
from flows.runtime.own_processes import OwnProcesses
from flows.runtime.prefect_tasks import retried_task
from flows.runtime.run_locks import host_lock
from flows.runtime.source_revision import source_revision
from storage.filesystem import AnyPath
from storage.lake import catalog, sweep_results
from storage.store import Store


def is_done(store: Store, sweep: str, cell: Cell) -> bool:
    """Whether the results of a cell are in the lake, of the source that is running."""
    return _path(store, sweep, cell).exists()


@retried_task("run a cell", task_run_name="{cell.name}")
def run(store: Store, sweep: str, cell: Cell, processes: OwnProcesses) -> None:
    """Train and place in one cell, in a process of its own -> its results in the lake."""
    with host_lock() if cell.is_measured else nullcontext():
        results = processes.run(run_cell, cell)
    sweep_results.write_results(_path(store, sweep, cell), sweep, cell.name, source_revision(), results)
    get_run_logger().info("%s: %d placements", cell.name, len(results))


def run_all(
    store: Store, sweep: str, cells: Sequence[Cell], workers: int, finished: Callable[[str], None]
) -> dict[str, str]:
    """Run cells, the longest first, `workers` at once; then those that measure, one at a time.

    Args:
        finished: called with the name of each cell that has ended.

    Returns:
        By the name of each cell that failed, why.
    """
    together = sorted((cell for cell in cells if not cell.is_measured), key=lambda cell: -cell.work)
    alone = [cell for cell in cells if cell.is_measured]
    failed: dict[str, str] = {}
    for part, at_once in ((together, workers), (alone, 1)):
        if not part:
            continue
        runner: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=at_once)
        with runner, OwnProcesses() as processes:
            name_of: dict[PrefectFuture[Any], str] = {}
            for cell in part:
                call = {"store": store, "sweep": sweep, "cell": cell, "processes": processes}
                name_of[runner.submit(run, parameters=call)] = cell.name
            for future in as_completed(list(name_of)):
                name, outcome = name_of[future], future.result(raise_on_failure=False)
                if isinstance(outcome, BaseException):
                    failed[name] = error_sentence(outcome)
                finished(name)
    return failed


def num_workers(asked: int | None, cells: Sequence[Cell]) -> int:
    """Cells to run at once: as asked, else as many as this process has cores, but no more than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked or cores, len(cells)))


def require_all(failed: Mapping[str, str], num_cells: int) -> None:
    """Raise if cells failed, with their names and why.

    Raises:
        RuntimeError: some did.
    """
    if failed:
        listed = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise RuntimeError(
            f"{len(failed)} of {num_cells} cells failed, so the page lacks them ({listed}); the others are kept, and the "
            "same command tries only these again"
        )


def done_results(store: Store, sweep: Sweep) -> list[CellResult]:
    """The results of all cells that are done."""
    done = [cell for cell in sweep.cells if is_done(store, sweep.name, cell)]
    return [result for cell in done for result in sweep_results.read_results(_path(store, sweep.name, cell))]


@retried_task("show the figures")
def publish(store: Store, run: str, sweep: Sweep) -> dict[str, Any]:
    """Results of all done cells -> page, plots and figures in MLflow, an artifact in Prefect; returns the outcome."""
    catalog.write_catalog(store.settings)
    return sweep_page.publish(store, run, sweep, done_results(store, sweep))


def _path(store: Store, sweep: str, cell: Cell) -> AnyPath:
    return sweep_results.result_path(store.lake.root, sweep, cell.name, content_key(cell))
