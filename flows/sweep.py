"""All placers at many sizes, on tables that none has seen; continues where an interrupted sweep ended."""

from typing import Any

from dreamshard.sweep import sweep as design
from flows.forms.form import deployed
from flows.forms.options import SweepOptions
from flows.reports import sweep_page
from flows.runtime.progress import announce, progress_artifact, publish_progress
from flows.tasks import sweeping
from storage.store import open_store


@deployed("sweep")
def sweep(options: SweepOptions) -> dict[str, Any]:
    """Cells -> results in the lake -> figures and a page in MLflow and Prefect."""
    store, designed = open_store(), design(options.recipe, short=options.short, split=options.split)
    left = [cell for cell in designed.cells if not sweeping.is_done(store, designed.name, cell)]
    if len(left) < len(designed.cells):
        announce(f"{len(designed.cells) - len(left)} of {len(designed.cells)} cells were done before")
    with (
        sweep_page.run_of(store, designed, short=options.short, split=options.split) as run,
        progress_artifact("sweep"),
    ):
        for done, cell in enumerate(left, start=1):
            sweeping.run(store, designed.name, cell)
            publish_progress("sweep", done, len(left), cell.name)
        return sweeping.publish(store, run, designed)
