"""`dreamshard models`, `sql` and `prune`: what the home holds."""

from typing import Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter, with_options
from flows.forms.options import PruneOptions

KEY_METRICS = (
    "eval_overall_ms",
    "eval_gain_over_random",
    "eval_gain_over_best_baseline",
    "eval_gain_over_best_baseline_low",
    "eval_gain_over_best_baseline_high",
    "eval_predicted_mape",
    "eval_place_ms",
    "cost_heldout_mape",
    "compared_overall_ms",
    "compared_predicted_mape",
)
"""Metrics in the table of versions; `models VERSION` and `--json` show all."""

SHOWN = 5
"""Newest versions shown; more do not fit a terminal."""


def models(
    version: Annotated[
        str | None, typer.Argument(help="A version or alias: everything about it, and why it was (not) promoted.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Versions beyond the newest and those with an alias.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Champion, challenger, previous and other versions side by side; with VERSION one of them in full."""
    settings = enter(home, existing=True).settings
    from storage.mlflow_store import versions

    if version is not None:
        _show_version(versions.version(settings, version), as_json=as_json)
        return
    rows = versions.versions(settings)
    if as_json:
        terminal.print_json(rows)
        return
    if not rows:
        terminal.say("no versions yet; `dreamshard run` trains the first")
        return
    newest = [entry["version"] for entry in rows[:SHOWN]]
    shown = [entry for entry in rows if every or entry["aliases"] or entry["version"] in newest]
    names = ["aliases", "created_at", *versions.FACTS, *(name for name in KEY_METRICS if name in rows[0])]
    columns = {f"version {entry['version']}": entry for entry in reversed(shown)}
    short = {head: entry | {"commit": (entry["commit"] or "")[:12] or None} for head, entry in columns.items()}
    terminal.print_table([{"": name} | {head: entry[name] for head, entry in short.items()} for name in names])
    for head, entry in columns.items():
        terminal.say(f"{head}: {entry['reason']}")
    if len(shown) < len(rows):
        terminal.say(f"{len(rows) - len(shown)} older versions: --all")


def _show_version(version: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(version)
        return
    description, tags = version.pop("description"), version.pop("tags")
    history = tags.pop("history", "")
    head = f"version {version['version']}"
    terminal.print_table([{"": name, head: value} for name, value in (version | tags).items()])
    terminal.say("Decisions:")
    for line in history.splitlines() or ["none yet"]:
        terminal.say(f"  {line}")
    terminal.say(description)


def sql(
    query: Annotated[
        str,
        typer.Argument(help="Over tables, tasks, cost_samples, device_costs, placements, evaluations, shard_costs."),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything in the lake."""
    store = enter(home, existing=True)
    from storage.lake import catalog

    rows = catalog.query(store.settings, query)
    terminal.print_json(rows) if as_json else terminal.print_table(rows)


@with_options
def prune(options: PruneOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Remove old lookups, cost samples, checkpoints, reports and leftovers of killed runs; a dry run without --yes.

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
        terminal.say(f"  {terminal.typed(f'prune --older-than {days}d --yes')}")
