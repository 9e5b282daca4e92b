"""The complete configuration that options stand for."""

from dataclasses import asdict, replace
from typing import Any

from dreamshard.recipes import Recipe, recipe, with_overrides
from flows.forms.options import RecipeOptions


def configure(options: RecipeOptions) -> Recipe:
    """The recipe of the options; every other option that is filled in replaces the recipe's own value.

    Raises:
        ValueError: there is no such recipe; the message lists the existing ones.
    """
    filled = {name: value for name, value in asdict(options).items() if value is not None}
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=filled.get("source"))
    tasks: dict[str, Any] = {k: filled[k] for k in ("num_devices", "tables_per_task") if k in filled}
    if "memory_gb" in filled:
        tasks["memory_bytes"] = round(filled["memory_gb"] * 2**30)
    training: dict[str, Any] = {k: filled[k] for k in ("iterations", "placements_per_iteration") if k in filled}
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    return replace(base, tasks=replace(base.tasks, **tasks), training=replace(base.training, **training))
