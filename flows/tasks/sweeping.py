"""Prefect tasks of a sweep: one for each cell, and one that shows the figures."""

from typing import Any

from prefect import get_run_logger

from dreamshard.sweep import Cell, CellResult, Sweep, run_cell
from flows.reports import sweep_page
from flows.runtime.content_keys import content_key
from flows.runtime.prefect_tasks import retried_task
from flows.runtime.source_revision import source_revision
from storage.filesystem import AnyPath
from storage.lake import catalog, sweep_results
from storage.store import Store


def is_done(store: Store, sweep: str, cell: Cell) -> bool:
    """Whether the results of a cell are in the lake, of the source that is running."""
    return _path(store, sweep, cell).exists()


@retried_task("run a cell", task_run_name="{cell.name}")
def run(store: Store, sweep: str, cell: Cell) -> None:
    """Train and place in one cell -> its results in the lake."""
    results = run_cell(cell)
    sweep_results.write_results(_path(store, sweep, cell), sweep, cell.name, source_revision(), results)
    get_run_logger().info("%s: %d placements", cell.name, len(results))


@retried_task("show the figures")
def publish(store: Store, run: str, sweep: Sweep) -> dict[str, Any]:
    """Results of all cells -> page and figures in MLflow, an artifact in Prefect; returns the flow's outcome."""
    results: list[CellResult] = []
    for cell in sweep.cells:
        results += sweep_results.read_results(_path(store, sweep.name, cell))
    catalog.write_catalog(store.settings)
    return sweep_page.publish(store, run, sweep, results)


def _path(store: Store, sweep: str, cell: Cell) -> AnyPath:
    return sweep_results.result_path(store.lake.root, sweep, cell.name, content_key(cell))
