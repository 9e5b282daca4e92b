"""All placers at many sizes, on tables that none has seen; continues where an interrupted sweep ended."""

from typing import Any

from dreamshard.sweep import Cell, Sweep, cells_of, check_cells
from dreamshard.sweep import sweep as design
from flows.forms.form import deployed
from flows.forms.options import SweepOptions
from flows.reports import sweep_page
from flows.runtime.progress import announce, progress_artifact, publish_progress
from flows.tasks import sweeping
from storage.store import open_store


@deployed("sweep")
def sweep(options: SweepOptions) -> dict[str, Any]:
    """Cells -> results in the lake -> figures, plots and a page in MLflow and Prefect."""
    designed, cells = asked_for(options)
    store = open_store()
    left = [cell for cell in cells if not sweeping.is_done(store, designed.name, cell)]
    check_cells(left)
    if len(left) < len(cells):
        announce(f"{len(cells) - len(left)} of {len(cells)} cells were done before")
    workers = sweeping.num_workers(options.workers, left)
    with (
        sweep_page.run_of(store, designed, short=options.short, split=options.split, workers=workers) as run,
        progress_artifact("sweep"),
    ):
        done = 0

        def finished(name: str) -> None:
            nonlocal done
            done += 1
            publish_progress("sweep", done, len(left), name)

        failed = sweeping.run_all(store, designed.name, left, workers, finished)
        outcome = sweeping.publish(store, run, designed)
        sweeping.require_all(failed, len(cells))
        return outcome


def asked_for(options: SweepOptions) -> tuple[Sweep, tuple[Cell, ...]]:
    """The sweep that the options name, and its cells that they ask for.

    Raises:
        ValueError: there is no such sweep or experiment; the message lists all.
    """
    designed = design(options.recipe, short=options.short, split=options.split)
    experiments = [name.strip() for name in (options.experiments or "").split(",") if name.strip()]
    return designed, cells_of(designed, experiments, real_ranks=not options.no_real_ranks)
