"""Sizes that follow from the tables and the testbed: one model or a pool, tables per task, memory, batch size.

A recipe has these values for its own tables. For other tables they are derived here, except those that a person gave.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from dreamshard.files.text import gib
from dreamshard.names import SIMULATED
from dreamshard.recipes import Recipe
from dreamshard.tables import DEFAULT_BATCH, Tables
from dreamshard.testbeds.base import TABLES_SHARE, Capacity
from dreamshard.workloads import list_file, list_tables

_MOST_LOOKUPS = 2**28  # per batch: 1 GiB of indices
_LEAST_BATCH = 512
_TABLES_PER_DEVICE = 5  # of a pool's tasks: with fewer, large tables decide the cost whatever the placement
_SHARE_OF_MEMORY = {"gpu": TABLES_SHARE, "simulated": TABLES_SHARE, "cpu": 1 / 2, "unknown": TABLES_SHARE}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What was chosen, and why, in words.

    Attributes:
        sentence: mode and sizes for people.
        parameters: the same as parts of a recipe, for records of the run.
    """

    sentence: str
    parameters: Mapping[str, Mapping[str, str | int]]


def with_batch_size(recipe: Recipe) -> Recipe:
    """The recipe with the batch size derived, if it has to be: needed before lookups are drawn, and the testbed is open."""
    if "batch_size" not in recipe.derived:
        return recipe
    batch = recipe.workload.batch_size
    kind, *details = recipe.testbed.split(":")
    has_gpus = kind in ("auto", "cluster") and "cpu" not in details and torch.cuda.device_count() > 0
    if has_gpus or kind in (SIMULATED, "emulated") or "cuda" in details:
        batch = max(batch, DEFAULT_BATCH)
    per_sample = _lookups_per_sample(recipe.workload.source)
    while batch > _LEAST_BATCH and batch * per_sample > _MOST_LOOKUPS:
        batch //= 2
    return replace(recipe, workload=replace(recipe.workload, batch_size=batch))


def sized(recipe: Recipe, tables: Tables, capacity: Capacity) -> tuple[Recipe, Sizes]:
    """The recipe with its mode and all sizes settled, and what was chosen.

    Args:
        tables: all tables of the source.
        capacity: of the testbed's devices.

    Raises:
        ValueError: as much memory is to be kept free as there is.
    """
    tasks, count = recipe.tasks, len(tables)
    worth = tasks.tables_per_task
    if "tables_per_task" in recipe.derived:
        worth = max(worth, _TABLES_PER_DEVICE * tasks.num_devices)
    fits_twice = count >= 2 * worth
    mode = tasks.mode if tasks.mode != "auto" else "pool" if fits_twice else "fixed"
    asked = (
        "as asked"
        if tasks.mode != "auto"
        else f"{count} tables are {'' if fits_twice else 'fewer than '}two tasks' worth"
    )
    if mode == "fixed":
        per_task = count
        what = (
            f"a fixed model ({asked}): all {count} tables are trained on; placements and drifted variants are held out"
        )
    else:
        per_task = max(1, min(worth, count // 2)) if "tables_per_task" in recipe.derived else worth
        other = f"; if they are one model, --mode fixed learns all {count}" if tasks.mode == "auto" else ""
        what = f"a pool ({asked} of {per_task}): half of the tables are held out{other}"
    memory_bytes = tasks.memory_bytes
    if "memory_bytes" in recipe.derived and capacity.memory_bytes is not None:
        eighth = 2**27  # of a GiB: machines of one kind differ by less, and should draw the same tasks
        memory_bytes = max(eighth, int(capacity.memory_bytes * _SHARE_OF_MEMORY[capacity.kind]) // eighth * eighth)
    if tasks.reserve_bytes >= memory_bytes:
        raise ValueError(
            f"{gib(tasks.reserve_bytes)} are to be kept free of the {gib(memory_bytes)} of each device, which leaves no "
            "room for tables; reserve less, or give devices more memory"
        )
    memory_bytes -= tasks.reserve_bytes
    settled_tasks = replace(tasks, mode=mode, tables_per_task=per_task, memory_bytes=memory_bytes, reserve_bytes=0)
    settled = replace(recipe, tasks=settled_tasks)
    memory = "as given" if "memory_bytes" not in recipe.derived else "derived"
    if memory == "derived" and capacity.memory_bytes is None:
        memory = "the recipe's, since the testbed states no memory_bytes"
    return settled, _in_words(settled, what, memory, batch_size_of(tables))


def _in_words(recipe: Recipe, what: str, memory: str, batch: int) -> Sizes:
    tasks = recipe.tasks

    def origin(name: str) -> str:
        return "derived" if name in recipe.derived else "as given"

    tables = "all of them" if tasks.mode == "fixed" else origin("tables_per_task")
    sentence = (
        f"learning {what}. Tasks: {tasks.num_devices} devices of {gib(tasks.memory_bytes)} ({memory}), "
        f"{tasks.tables_per_task} tables ({tables}), batches of {batch} samples "
        f"({origin('batch_size') if batch == recipe.workload.batch_size else 'as ingested'})."
    )
    chosen = {"mode": tasks.mode, "tables_per_task": tasks.tables_per_task, "memory_bytes": tasks.memory_bytes}
    return Sizes(sentence=sentence, parameters={"tasks": chosen})


def batch_size_of(tables: Tables) -> int:
    """Samples of the batch in which the tables' lookups were counted."""
    busiest = int(tables.pooling_factor.argmax())
    return max(1, round(int(tables.lookups[busiest]) / max(float(tables.pooling_factor[busiest]), 1e-9)))


def _lookups_per_sample(source: str) -> float:
    """Lookups of a training sample in a list of tables; 0 where only the source's data tell."""
    path = list_file(source)
    if path is None:
        return 0.0
    return sum(1.0 if table.pooling_factor is None else table.pooling_factor for table in list_tables(path))
