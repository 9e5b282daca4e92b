"""`dreamshard models`: versions side by side, or one in full."""

from typing import Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, JsonOption, enter

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
"""Versions that fit a terminal."""


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
    terminal.print_table(
        [{"": name} | {head: _short(name, entry) for head, entry in columns.items()} for name in names]
    )
    for head, entry in columns.items():
        terminal.say(f"{head}: {entry['reason']}")
    if len(shown) < len(rows):
        terminal.say(f"{len(rows) - len(shown)} older versions: --all")


def _short(name: str, entry: dict[str, Any]) -> Any:
    value = entry[name]
    return value[:12] if name == "commit" and value else value


def _show_version(version: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(version)
        return
    description, tags = version.pop("description"), version.pop("tags")
    history = tags.pop("history", "")
    terminal.print_table(
        [{"": name, f"version {version['version']}": value} for name, value in (version | tags).items()]
    )
    terminal.say("Decisions:")
    for line in history.splitlines() or ["none yet"]:
        terminal.say(f"  {line}")
    terminal.say(description)
