"""`dreamshard models`, `sql` and `prune`: versions and measurements of the home, and its old files."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markdown import Markdown

from flows.cli import terminal
from flows.cli.command import Fields, Json, Positive, command, open_home
from flows.forms.options import PruneOptions
from storage import retention
from storage.lake import catalog
from storage.lake.parquet_files import datasets
from storage.mlflow_store import registry
from storage.run_records.trainings import in_words

NOT_SHOWN = ("reason", "training", "evaluation", "prefect_run", "mlflow_run")
"""Columns of the view `versions` that its table leaves out; `models VERSION` and `--json` show all, and every metric."""

SHOWN = 5
"""Newest versions shown; more do not fit a terminal."""

_COMPARABLE = (
    "Each version was measured on its own held-out tasks, so compare costs only if tasks and hardware are the same; "
    "`dreamshard compare` measures versions on the same tasks."
)


@command
def models(
    version: str | None = None,
    /,
    *,
    model: str = "",
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    as_json: Json = False,
) -> None:
    """Show versions side by side, with the champion of each hardware, or VERSION in full.

    Args:
        version: Version or alias to show in full (3, champion), with each decision on it and the reason.
        model: Show only versions of this model.
        every: Show all versions, not only the newest and those with an alias.
    """
    settings = open_home(existing=True, reads_only=True)
    if version is not None:
        details = registry.version_in_full(settings, version, model)
        if as_json:
            terminal.print_json(details)
            return
        description, tags = details.pop("description"), details.pop("tags")
        terminal.say(", ".join(filter(None, (in_words(details.pop("reference")), details["standing"]))))
        terminal.show_fields({name: value for name, value in (details | tags).items() if value not in (None, "")})
        terminal.OUT.print(Markdown(description))
        return
    known = [v for v in registry.versions(settings) if not model or v.model == model]
    shown = [v for n, v in enumerate(known) if every or as_json or v.aliases or n < SHOWN]
    rows = registry.version_rows(settings, shown)
    if as_json:
        terminal.print_json(rows)
        return
    if not rows:
        terminal.say("no versions yet; `dreamshard run` trains the first")
        return
    columns = {in_words(entry["reference"]): entry for entry in reversed(rows)}
    fields = ("standing", *datasets()["versions"].names)
    names = [name for name in fields if name not in NOT_SHOWN and any(entry[name] for entry in rows)]
    terminal.print_table(
        [{"": name} | {head: entry[name] or None for head, entry in columns.items()} for name in names]
    )
    for head, entry in columns.items():
        terminal.say(f"{head}: {entry['reason']}")
    if len(shown) > 1:
        terminal.say(_COMPARABLE)
    if len(shown) < len(known):
        terminal.say(f"{len(known) - len(shown)} older versions: --all")


@command
def sql(
    query: str,
    /,
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    rows: Positive = 1000,
    as_json: Json = False,
) -> None:
    """Query everything that was measured and registered with DuckDB.

    Args:
        query: SQL over the views versions, tables, table_costs, tasks, cost_samples, rounds, device_costs, placements,
            evaluations, evaluated_devices, exchange_samples; `describe VIEW` lists the columns of a view.
        csv: CSV file to write instead of printing.
        parquet: Parquet file to write instead of printing.
        rows: Maximum number of rows to print, also with --json; --csv and --parquet write all.
    """
    store = open_home(existing=True, reads_only=True)
    with catalog.answering(store, query) as answer:
        if csv is not None:
            answer.write_csv(str(csv), header=True)
        if parquet is not None:
            answer.write_parquet(str(parquet), compression="zstd")
        for path in filter(None, (csv, parquet)):
            terminal.note(f"wrote {path}")
        if not (csv or parquet):
            records = [dict(zip(answer.columns, row, strict=True)) for row in answer.limit(rows + 1).fetchall()]
            (terminal.print_json if as_json else terminal.print_table)(records[:rows])
            if len(records) > rows:
                terminal.note(f"more than {rows} rows; --rows prints more, and --csv FILE or --parquet FILE writes all")


@command
def prune(*, options: Annotated[PruneOptions, Fields] = PruneOptions(), as_json: Json = False) -> None:
    """List old files that no version needs, and remove them with --delete.

    These are old versions, lookups, samples, checkpoints, reports and leftovers of killed runs. Whatever a kept version or a
    current run needs stays, and so do the tables ingested last. `dreamshard ingest` restores removed lookups.
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
