"""`dreamshard prune`: what is old and needed by no registered version; shown, and removed where asked to."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, JsonOption, enter


def _days(text: str | int) -> int:
    """`90d` or `90`."""
    found = re.fullmatch(r"(\d{1,5})d?", str(text).strip())
    if found is None or int(found[1]) < 1:
        raise typer.BadParameter(f"{text!r} is no number of days; give for example 90d, at least 1d")
    return int(found[1])


def prune(
    older_than: Annotated[
        int, typer.Option("--older-than", parser=_days, metavar="DAYS", help="Since it was written, e.g. 90d.")
    ] = 90,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it for good; without this nothing is removed.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Free what is old: lookups, cost samples, checkpoints, reports and what killed runs left; a dry run without --yes.

    Never what a registered version names (its training, evaluation and tables), what is in use, or the tables ingested
    last. Lookups that went are made again by `dreamshard ingest`.
    """
    enter(home, existing=True)
    from storage import retention
    from storage.lake import catalog
    from storage.store import open_store

    store = open_store()
    removals = retention.find_removable(store, datetime.now(UTC) - timedelta(days=older_than))
    table = retention.totals(removals)
    if yes:
        retention.remove_files(removals)
        catalog.write_catalog(store.settings)
    if as_json:
        terminal.print_json({"older_than_days": older_than, "deleted": yes, "table": table})
        return
    done = "removed" if yes else "would go"
    terminal.print_table(table, title=f"Older than {older_than} days and needed by no version: {done}")
    if not yes and removals:
        terminal.OUT.print("Nothing was removed. To remove it:", highlight=False, markup=False)
        command = terminal.typed(f"prune --older-than {older_than}d --yes")
        terminal.OUT.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
