"""Setting of a comparison of versions: the sizes, hardware and tables of the versions, unless others are given."""

from collections.abc import Callable, Sequence
from typing import Any

from dreamshard.recipes import RECIPES
from flows.forms.options import CompareOptions
from flows.rules.heldout import split_by_training
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Topology, Training
from storage.store import Store

_FEWEST_TABLES = 2
"""Of a task that has a choice of devices."""

_TAKEN: dict[str, tuple[str, Callable[[Training], Any]]] = {
    "testbed": ("testbed", lambda own: own.testbed.kind if own.testbed.name == "auto" else own.testbed.name),
    "devices": ("number of devices", lambda own: own.recipe.tasks.num_devices),
    "devices_per_host": ("number per host", lambda own: own.recipe.tasks.devices_per_host),
    "memory_gb": ("GiB per device", lambda own: own.recipe.tasks.memory_bytes / 2**30),
}
"""Options that come from the first version: their names for people, and their values."""


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
    taken: dict[str, Any] = {}
    notes: list[str] = []
    if options.recipe == "default" and first.made_of.recipe.name in RECIPES:
        taken["recipe"] = first.made_of.recipe.name
    for name, (what, value_of) in _TAKEN.items():
        if getattr(options, name) is not None or (name == "devices_per_host" and options.devices):
            continue
        values = {str(each): value_of(each.made_of) for each in versions}
        taken[name] = values[str(first)]
        differing = [f"{value} ({version})" for version, value in values.items() if value != taken[name]]
        if differing:
            notes.append(f"the {what} is that of {first}, {taken[name]}, not {' and '.join(differing)}")
    if options.dataset is None:
        taken["dataset"] = newest.made_of.dataset
        if len({version.made_of.dataset for version in versions}) > 1:
            notes.append(f"the tables are those of {newest}, the newest")
    if options.mode is None:
        is_pool = options.tables_per_task is not None
        taken |= {"mode": "pool"} if is_pool else _tasks(store, options.dataset or taken["dataset"], versions, notes)
    filled = options.model_copy(update=taken)
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
