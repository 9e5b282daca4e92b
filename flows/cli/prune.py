"""`dreamshard prune`: removes old files that no version needs."""

from typing import Annotated

from flows.cli import terminal
from flows.cli.command import Fields, Json, command, open_home
from flows.forms.options import PruneOptions
from storage import retention


@command
def prune(*, options: Annotated[PruneOptions, Fields] = PruneOptions(), as_json: Json = False) -> None:
    """Remove old versions, lookups, samples, checkpoints, reports and leftovers of killed runs; a dry run without --delete.

    Never what a kept version names (its training, evaluation and tables), what is in use, or the tables ingested last.
    `dreamshard ingest` makes removed lookups again.
    """
    days = options.older_than_days
    table = retention.prune(open_home(existing=True), **options.model_dump())
    if as_json:
        terminal.print_json(options.model_dump() | {"table": table})
        return
    done = "removed" if options.delete else "would be removed"
    terminal.print_table(table, title=f"Older than {days} days and needed by no version: {done}")
    if not options.delete and table[-1]["files"]:
        terminal.say(f"Nothing was removed. To remove it: dreamshard prune --older-than-days {days} --delete")
