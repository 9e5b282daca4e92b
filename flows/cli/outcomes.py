"""Shows the outcomes of flows, and which command comes next."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamshard.names import in_words
from flows.cli import terminal

if TYPE_CHECKING:
    from dreamshard.tasks import PlacementTask


def show_promotion(outcome: Mapping[str, Any]) -> None:
    """The version that a promotion decided on, and why."""
    terminal.say(f"{in_words(outcome['version'])} is {outcome['standing']}: {outcome['reason']}")
    if outcome["note"]:
        terminal.say(f"Note: {outcome['note']}")
    terminal.say(f"Trained {outcome['effort']}")
    error = outcome["prediction_error"]
    held_out = "not known: no placement was held out" if error is None else f"{error:.1%} on held-out placements"
    terminal.say(
        f"Prediction error: {held_out}"
        if outcome["is_predicted"]
        else "It predicts compute only, and no cost of a step"
    )
    if outcome["alias"] != "champion":
        terminal.say(f"It can still be used: --placer {outcome['version']}")


def show_champion(change: Mapping[str, Any]) -> None:
    """The champion that was set by hand, and how to undo it."""
    version, former = change["version"], change["former"]
    if version == former:
        terminal.say(f"{in_words(version)} is the champion already; `champion` alone means it")
    elif former is None:
        terminal.say(f"{in_words(version)} is champion of {change['topology']}; there was none before")
    else:
        terminal.say(
            f"{in_words(version)} is champion of {change['topology']}; {in_words(former)} is kept as `previous`"
        )
        terminal.say(f"Undo: {terminal.typed(f'promote {former}')}")


def show_fields(fields: Mapping[str, Any]) -> None:
    """One line per field."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        terminal.say(f"  {name.replace('_', ' '):<{width}}  {terminal.shown(value)}")


def show_next(*commands: str) -> None:
    """Commands to run next."""
    terminal.say("Next:")
    for command in commands:
        terminal.say(f"  {terminal.typed(command)}")


def place_example(outcome: Mapping[str, Any], learnt: Path | None = None, task: "PlacementTask | None" = None) -> str:
    """A `place` command: of the list that was learnt, on the devices of a task, or of MLPerf's, a bundled list.

    Args:
        outcome: of a promotion.
        learnt: the list or the function that the tables came from, if they are the user's own.
        task: one that was held out.
    """
    tables = "mlperf-dlrm-dcnv2" if learnt is None else os.path.relpath(learnt)
    is_default = outcome["alias"] == "champion" and not outcome["note"]
    placer = "" if is_default else f" --placer {outcome['version']}"
    devices, memory_gb = (8, 40) if task is None else (task.num_devices, task.memory_bytes / 2**30)
    per_host = task and task.devices_per_host
    hosts = f" --devices-per-host {per_host}" if per_host and per_host < devices else ""
    return f"place {tables} --devices {devices}{hosts} --memory-gb {memory_gb:g}{placer}"
