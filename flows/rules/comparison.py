"""Setting of a comparison of versions: the sizes, hardware and tables of the versions, unless others are given."""

from collections.abc import Sequence
from typing import Any

from dreamshard.recipes import RECIPES
from flows.forms.options import CompareOptions
from flows.rules.heldout import split_by_training
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Topology
from storage.store import Store

_FEWEST_TABLES = 2
"""Of a task that has a choice of devices."""


def with_sizes_of_versions(
    store: Store, options: CompareOptions, versions: Sequence[Version]
) -> tuple[CompareOptions, str]:
    """The options, completed from the versions, and a sentence on values taken from them.

    If versions differ, the first decides on testbed, devices and memory, the newest on the tables; one that learned a
    fixed model makes all be compared on one model, since no table is held out for it.

    Raises:
        ValueError: too few tables are held out for all of the versions, or the tables are not in this lake.
    """
    first, newest = versions[0], max(versions, key=lambda version: (version.created, version.number))
    testbed, recipe = first.made_of.testbed, first.made_of.recipe
    taken = {
        "recipe": recipe.name if recipe.name in RECIPES else options.recipe,
        "testbed": testbed.kind if testbed.name == "auto" else testbed.name,
        "devices": recipe.tasks.num_devices,
        "devices_per_host": None if options.devices else recipe.tasks.devices_per_host,
        "memory_gb": recipe.tasks.memory_bytes / 2**30,
        "dataset": newest.made_of.dataset,
    }
    filled, notes = options.model_copy(update=taken | options.model_dump(exclude_defaults=True)), list[str]()
    if options.mode is None:
        is_pool = options.tables_per_task is not None
        mode = {"mode": "pool"} if is_pool else _tasks(store, str(filled.dataset), versions, notes)
        filled = filled.model_copy(update=mode)
    what = "one fixed model" if filled.mode == "fixed" else f"tasks of {filled.tables_per_task} tables"
    sentence = (
        f"compared as {first} was trained: {what} of dataset {filled.dataset}, {filled.devices} devices of "
        f"{filled.memory_gb:.4g} GiB, testbed {filled.testbed}"
    )
    return filled, "; ".join([sentence, *notes])


def other_hardware(versions: Sequence[Version], measured: Topology) -> str:
    """Says which versions' costs are of other hardware, or another number of devices, than is measured on; empty if none."""
    others = {str(version): topology for version in versions if (topology := version.made_of.topology) != measured}
    if not others:
        return ""
    of = " and ".join(f"{version} of {topology}" for version, topology in others.items())
    return f"measured on {measured}, but the predictions are those of {of}"


def _tasks(store: Store, dataset: str, versions: Sequence[Version], notes: list[str]) -> dict[str, Any]:
    """Mode and tables per task."""
    fixed = [version for version in versions if version.made_of.is_fixed]
    if fixed:
        if len(fixed) < len(versions):
            notes.append(f"all are compared on one fixed model, since no table is held out for {fixed[0]}")
        return {"mode": "fixed"}
    _, unseen = split_by_training(store, dataset, versions)
    wanted = versions[0].made_of.recipe.tasks.tables_per_task
    if len(unseen) < _FEWEST_TABLES:
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} are new to all of {', '.join(map(str, versions))}; compare "
            "fewer versions, or use --mode fixed"
        )
    if len(unseen) < wanted:
        notes.append(f"tasks have {len(unseen)} tables rather than {wanted}, since only those are held out for all")
    return {"mode": "pool", "tables_per_task": min(wanted, len(unseen))}
