"""`--trace FILE`: what a stage measured, as a time line for trace viewers."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamshard.costs import DeviceCosts
from dreamshard.recipes import recipe
from dreamshard.trace import traced, write_trace
from flows.reports import evaluations
from flows.reports.timeline import costs_of
from storage.lake import home_lake
from storage.run_records import checkpoints
from storage.store import open_store


def check(recipe_name: str) -> None:
    """Say before anything is measured that there will be nothing to draw.

    Raises:
        ValueError: the recipe measures shards, not placements; or there is no such recipe.
    """
    if recipe(recipe_name).collection is not None:
        raise ValueError(
            f"recipe {recipe_name!r} measures shards one by one, not placements, so there is no time line of devices "
            "to write; leave --trace out, or name a recipe that places tables"
        )


def write(outcome: Mapping[str, Any], path: Path) -> int:
    """Write the placements of an evaluation, or of a profile's iteration; returns how many.

    Args:
        outcome: of the stage's flow.
        path: of the file.

    Raises:
        ValueError: no placement fits its devices.
    """
    found = _evaluated(outcome["evaluation"]) if "evaluation" in outcome else _profiled(outcome)
    if not found:
        raise ValueError("no placement that was measured fits its devices, so there is no time line to write")
    write_trace(path, found)
    return len(found)


def _evaluated(key: str) -> dict[str, DeviceCosts]:
    rows = [row for row in evaluations.load(key)["rows"] if math.isfinite(row["overall_ms"])]
    return {f"{row['task']}, {row['placer']}: {row['overall_ms']:.3f} ms": costs_of(row["devices"]) for row in rows}


def _profiled(outcome: Mapping[str, Any]) -> dict[str, DeviceCosts]:
    drawn = checkpoints.proposals(open_store(), outcome["training"], outcome["iteration"])
    wanted = {(name, tuple(device)) for name, device in drawn}
    samples = home_lake().read_cost_samples(run_key=outcome["training"])
    return traced([s for s in samples if (s.task.name, tuple(s.placement.device.tolist())) in wanted])
