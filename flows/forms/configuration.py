"""The complete configuration that options stand for."""

from dataclasses import asdict, replace
from typing import Any

from dreamshard.recipes import Recipe, recipe, with_overrides
from dreamshard.training import with_algorithm
from dreamshard.workloads import known_as
from flows.forms.options import RecipeOptions

_MOST_DEVICES = 4096


def configure(options: RecipeOptions, source: str | None = None) -> Recipe:
    """The recipe of the options; every other option that is filled in replaces the recipe's own value.

    Sizes that the options leave open are derived later if the tables are not the recipe's own (`dreamshard.sizing`).

    Args:
        source: origin of tables that have been ingested, where the options name none.

    Raises:
        ValueError: there is no such recipe, and the message lists the existing ones; or options exclude each other.
    """
    filled = {name: value for name, value in asdict(options).items() if value is not None}

    def of(*names: str) -> dict[str, Any]:
        return {name: filled[name] for name in names if name in filled}

    if filled.get("mode") == "fixed" and "tables_per_task" in filled:
        raise ValueError("a fixed model is placed as a whole; leave out --tables-per-task, or give --mode pool")
    if "num_batches" in filled and ("batches" not in filled or "batch_size" in filled):
        raise ValueError("--num-batches counts sample batches; give it with --batches and without --batch-size")
    named = filled.get("source", source)
    own = None if named is None else known_as(named)
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=own)
    tasks = of("num_devices", "devices_per_host", "tables_per_task", "mode")
    for name, size in (("memory_gb", "memory_bytes"), ("reserve_gb", "reserve_bytes")):
        if name in filled:
            tasks[size] = round(filled[name] * 2**30)
    training = of("iterations", "placements_per_iteration")
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    workload = of("batch_size", "num_batches")
    if "batches" in filled:
        workload["batches"] = known_as(filled["batches"])
    measure: dict[str, Any] = {}
    if "exchange_devices" in filled:
        measure["exchange_devices"] = _counts(filled["exchange_devices"])
    algorithm = filled.get("algorithm", base.training.algorithm)
    return replace(
        base,
        tasks=replace(base.tasks, **tasks),
        training=replace(with_algorithm(base.training, algorithm), **training),
        measure=replace(base.measure, **measure),
        workload=replace(base.workload, **workload),
        derived=tuple(name for name in base.derived if name not in tasks.keys() | workload.keys()),
    )


def _counts(text: str) -> tuple[int, ...]:
    """Read `64, 128`.

    Raises:
        ValueError: it is not a list of numbers of devices.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and 2 <= int(word) <= _MOST_DEVICES for word in words):
        raise ValueError(
            f"{text!r} is not a list of numbers of devices; give numbers from 2 to {_MOST_DEVICES}, such as 64,128"
        )
    return tuple(sorted({int(word) for word in words}))
