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
    if filled.get("mode") == "fixed" and "tables_per_task" in filled:
        raise ValueError(
            "a fixed model is placed as a whole, so it has no tables per task; leave out --tables-per-task, or give "
            "--mode pool"
        )
    if "num_batches" in filled and ("batches" not in filled or "batch_size" in filled):
        raise ValueError(
            "the number of batches says how many of the sample batches are read, all of whose samples count; give it with "
            "--batches and without --batch-size"
        )
    named = filled.get("source", source)
    own = None if named is None else known_as(named)
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=own)
    tasks: dict[str, Any] = {
        k: filled[k] for k in ("num_devices", "devices_per_host", "tables_per_task", "mode") if k in filled
    }
    if "memory_gb" in filled:
        tasks["memory_bytes"] = round(filled["memory_gb"] * 2**30)
    if "reserve_gb" in filled:
        tasks["reserve_bytes"] = round(filled["reserve_gb"] * 2**30)
    training: dict[str, Any] = {k: filled[k] for k in ("iterations", "placements_per_iteration") if k in filled}
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    measure: dict[str, Any] = {}
    if "exchange_devices" in filled:
        measure["exchange_devices"] = _counts(filled["exchange_devices"])
    workload: dict[str, Any] = {k: filled[k] for k in ("batch_size", "num_batches") if k in filled}
    if "batches" in filled:
        workload["batches"] = known_as(filled["batches"])
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
            f"{text!r} is not a list of numbers of devices, so it is not known which all-to-alls to measure; give numbers "
            f"from 2 to {_MOST_DEVICES}, such as 64,128"
        )
    return tuple(sorted({int(word) for word in words}))
