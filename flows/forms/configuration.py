"""The complete configuration that options stand for."""

from dataclasses import asdict, replace
from typing import Any

from dreamshard.recipes import Recipe, recipe, with_overrides
from flows.forms.options import RecipeOptions


def configure(options: RecipeOptions) -> Recipe:
    """The recipe of the options; every other option that is filled in takes the place of the recipe's own value.

    Raises:
        ValueError: there is no such recipe; the message lists those there are.
    """
    filled = {name: value for name, value in asdict(options).items() if value is not None}
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=filled.get("source"))
    tasks: dict[str, Any] = {name: filled[name] for name in ("num_devices", "tables_per_task") if name in filled}
    if "memory_gb" in filled:
        tasks["memory_bytes"] = round(filled["memory_gb"] * 2**30)
    training: dict[str, Any] = {
        name: filled[name] for name in ("iterations", "placements_per_iteration") if name in filled
    }
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    return replace(base, tasks=replace(base.tasks, **tasks), training=replace(base.training, **training))
