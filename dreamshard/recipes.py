"""Recipes: complete configurations of the chain, by name, and the sizes that follow from tables and testbed.

A recipe has sizes for its own tables. For other tables they are derived here, except sizes that a person gave.
"""

from dataclasses import dataclass, field, replace

import torch

from dreamshard.costs import SIMULATED
from dreamshard.files import gib
from dreamshard.tables import DEFAULT_BATCH, Tables
from dreamshard.testbeds.base import TABLES_SHARE, Capacity
from dreamshard.training.config import TrainingConfig, with_algorithm
from dreamshard.workloads import META_WORKLOADS, WorkloadConfig, list_file, list_tables
from dreamshard.workloads.task_sampling import TasksConfig

SIZES = ("tables_per_task", "memory_bytes", "batch_size")
"""Sizes that are derived from the tables and the testbed if a recipe has no value for them."""

_MOST_LOOKUPS = 2**28  # per batch: 1 GiB of indices
_LEAST_BATCH = 512
_TABLES_PER_DEVICE = 5  # of a pool's tasks: with fewer, large tables decide the cost whatever the placement
_CPU_SHARE = 1 / 2  # of memory, for tables
_EIGHTH_OF_GIB = 2**27  # machines of one kind differ by less, and should draw the same tasks


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that the chain needs to know, except addresses.

    Attributes:
        model: name of the model whose tables they are, as given; empty if it is named after its source.
        exchange_devices: further numbers of devices whose all-to-alls are measured alone, besides those up to the tasks'
            own, so that the placer serves as many devices.
        sized_by_source: names in `SIZES` that are derived for another source of tables than the recipe's own.
        derived: names in `SIZES` that are yet to be derived; their values here are starting points.
    """

    name: str
    model: str = ""
    workload: WorkloadConfig
    tasks: TasksConfig
    testbed: str = "auto"
    exchange_devices: tuple[int, ...] = ()
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sized_by_source: tuple[str, ...] = SIZES
    derived: tuple[str, ...] = ()


_PAPER_TASKS = TasksConfig(
    tables_per_task=50, num_devices=4, memory_bytes=16 * 2**30, num_test=50, precision="fp16"
)  # of Meta's 2021 dataset
_PAPER_WORKLOAD = WorkloadConfig(dim=16, max_table_bytes=2**30, batch_size=65_536)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        # Meta's 2021 tables that fit a small machine; minutes on two cores
        Recipe(
            name="default",
            workload=WorkloadConfig(num_tables=480, max_table_bytes=256 * 2**20, batch_size=1024),
            tasks=TasksConfig(memory_bytes=2 * 2**30, num_test=40),
        ),
        # the whole chain on a tiny configuration; the result is too noisy to judge quality
        Recipe(
            name="smoke",
            workload=WorkloadConfig(num_tables=48, max_table_bytes=64 * 2**20, batch_size=512),
            tasks=TasksConfig(tables_per_task=8, memory_bytes=2**29, num_train=8, num_test=4),
            training=TrainingConfig(iterations=2, placements_per_iteration=5, cost_steps=100, policy_updates=5),
            sized_by_source=("tables_per_task", "memory_bytes"),
        ),
        # the paper's setting on the simulated testbed
        Recipe(name="dlrm_50x4", workload=_PAPER_WORKLOAD, tasks=_PAPER_TASKS, testbed=SIMULATED),
        # DreamShard as published on the paper's setting: 5 GiB per device, the paper's networks, the policy alone
        Recipe(
            name="paper_50x4",
            workload=_PAPER_WORKLOAD,
            tasks=replace(_PAPER_TASKS, memory_bytes=5 * 2**30),
            testbed=SIMULATED,
            training=with_algorithm(TrainingConfig(), "paper"),
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`; a ValueError lists all if there is none."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; choose one of {sorted(RECIPES)}")
    return RECIPES[name]


def with_overrides(base: Recipe, *, testbed: str | None = None, source: str | None = None) -> Recipe:
    """`base` on another testbed or with another source of tables: all of them, with dims and sizes of their own.

    Meta's datasets keep the recipe's limits, dims and sizes.
    """
    workload, derived = base.workload, base.derived
    if source in META_WORKLOADS:
        workload = replace(workload, source=source)
    elif source is not None and source != workload.source:
        workload = replace(workload, source=source, num_tables=None, max_table_bytes=None, dim=None)
        derived = base.sized_by_source
    return replace(base, testbed=testbed or base.testbed, workload=workload, derived=derived)


def with_batch_size(recipe: Recipe) -> Recipe:
    """The recipe with its batch size, which is needed before lookups are drawn and the testbed is open."""
    if "batch_size" not in recipe.derived:
        return recipe
    batch = recipe.workload.batch_size
    kind, *details = recipe.testbed.split(":")
    has_gpus = kind in ("auto", "cluster") and "cpu" not in details and torch.cuda.device_count() > 0
    if has_gpus or kind in (SIMULATED, "emulated") or "cuda" in details:
        batch = max(batch, DEFAULT_BATCH)
    listed = list_file(recipe.workload.source)
    per_sample = sum(table.pooling_factor or 1.0 for table in list_tables(listed)) if listed else 0.0
    while batch > _LEAST_BATCH and batch * per_sample > _MOST_LOOKUPS:
        batch //= 2
    return replace(recipe, workload=replace(recipe.workload, batch_size=batch))


def sized(recipe: Recipe, tables: Tables, capacity: Capacity) -> tuple[Recipe, str]:
    """The recipe with its mode and all sizes for a source's tables, and a sentence that gives them.

    Raises:
        ValueError: as much memory is to be kept free as there is.
    """
    tasks, count, is_derived = recipe.tasks, len(tables), "tables_per_task" in recipe.derived
    mode, worth, why, other = tasks.mode, tasks.tables_per_task, "as requested", ""
    if is_derived:
        worth = max(worth, _TABLES_PER_DEVICE * tasks.num_devices)
    if mode == "auto":
        fits_twice = count >= 2 * worth
        mode = "pool" if fits_twice and not is_derived else "fixed"
        why = f"{count} tables are {'' if fits_twice else 'fewer than '}two tasks' worth"
        if is_derived:  # of a source of one's own
            why = "your tables are one model; --mode pool is for models not seen yet"
        other = f"; if they are one model, --mode fixed learns all {count}"
    if mode == "fixed":
        worth = count
        what = f"a fixed model ({why}): all {count} tables are trained on; placements and variants are held out"
    else:
        worth = max(1, min(worth, count // 2)) if is_derived else worth
        what = f"a pool ({why} of {worth}): half of the tables are held out{other}"
    memory_bytes, origin = tasks.memory_bytes, "as given"
    if "memory_bytes" in recipe.derived:
        origin = "the recipe's, since the testbed states no memory_bytes"
        if capacity.memory_bytes is not None:
            share = _CPU_SHARE if capacity.kind == "cpu" else TABLES_SHARE
            eighths = max(1, int(capacity.memory_bytes * share) // _EIGHTH_OF_GIB)
            memory_bytes, origin = eighths * _EIGHTH_OF_GIB, "derived"
    if tasks.reserve_bytes >= memory_bytes:
        raise ValueError(
            f"{gib(tasks.reserve_bytes)} are to be kept free of the {gib(memory_bytes)} of each device; reserve less, or "
            "give devices more memory"
        )
    memory_bytes -= tasks.reserve_bytes
    tasks = replace(tasks, mode=mode, tables_per_task=worth, memory_bytes=memory_bytes, reserve_bytes=0)
    devices = "CPU ranks" if capacity.kind == "cpu" else "devices"
    sentence = (
        f"learning {what}. Tasks: {worth} tables on {tasks.num_devices} {devices} of "
        f"{gib(memory_bytes)} ({origin}), batches of {tables.batch_size} samples."
    )
    return replace(recipe, tasks=tasks), sentence
