"""The complete configuration that options stand for."""

from dataclasses import replace
from typing import Any

from dreamshard.recipes import Recipe, recipe, with_overrides
from dreamshard.training import with_algorithm
from dreamshard.workloads import is_function, known_as
from flows.forms.options import RecipeOptions


def configure(options: RecipeOptions, source: str | None = None) -> Recipe:
    """The recipe of the options; every other option that is filled in replaces the recipe's own value.

    Sizes that the options leave open are derived later if the tables are not the recipe's own (`dreamshard.recipes.sized`).

    Args:
        source: origin of tables that have been ingested, where the options name none.

    Raises:
        ValueError: there is no such recipe, and the message lists the existing ones; or options exclude each other.
    """
    filled = options.model_dump(exclude_none=True)

    def of(*names: str) -> dict[str, Any]:
        return {name: filled[name] for name in names if name in filled}

    if filled.get("mode") == "fixed" and "tables_per_task" in filled:
        raise ValueError("a fixed model is placed as a whole; leave out --tables-per-task, or give --mode pool")
    named = filled.get("source", source)
    known = None if named is None else known_as(named)
    if "batches" in filled and not (named and is_function(named)):
        raise ValueError(f"--batches {filled['batches']} needs a model; give model.py:make_model as the source")
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=known)
    tasks = of("devices_per_host", "tables_per_task", "mode")
    if "devices" in filled:
        tasks["num_devices"] = filled["devices"]
    for name, size in (("memory_gb", "memory_bytes"), ("reserve_gb", "reserve_bytes")):
        if name in filled:
            tasks[size] = round(filled[name] * 2**30)
    training = of("iterations", "placements_per_iteration")
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    workload = of("batch_size")
    if "batches" in filled:
        workload["batches"] = known_as(filled["batches"])
    algorithm = filled.get("algorithm", base.training.algorithm)
    return replace(
        base,
        model=filled.get("model", ""),
        tasks=replace(base.tasks, **tasks),
        training=replace(with_algorithm(base.training, algorithm), **training),
        measure=replace(base.measure, exchange_devices=tuple(sorted({*filled.get("exchange_devices", ())}))),
        workload=replace(base.workload, **workload),
        derived=tuple(name for name in base.derived if name not in tasks.keys() | workload.keys()),
    )
