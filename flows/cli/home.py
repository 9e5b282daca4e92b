"""`dreamshard prune`: remove old files that no registered version needs."""

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter, with_options
from flows.forms.options import PruneOptions


@with_options
def prune(options: PruneOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Remove old lookups, cost samples, checkpoints, reports and leftovers of killed runs; a dry run without --delete.

    Never what a registered version names (its training, evaluation and tables), what is in use, or the tables ingested
    last. `dreamshard ingest` makes removed lookups again.
    """
    store = enter(home, existing=True)
    from storage import retention

    days = options.older_than_days
    table = retention.prune(store, older_than_days=days, delete=options.delete)
    if as_json:
        terminal.print_json({"older_than_days": days, "deleted": options.delete, "table": table})
        return
    done = "removed" if options.delete else "would be removed"
    terminal.print_table(table, title=f"Older than {days} days and needed by no version: {done}")
    if not options.delete and table[-1]["files"]:
        terminal.say("Nothing was removed. To remove it:")
        terminal.say(f"  {terminal.typed(f'prune --older-than-days {days} --delete')}")
