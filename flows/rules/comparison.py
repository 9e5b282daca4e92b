"""Setting of a comparison of versions: as the first one was trained, on the newest one's tables."""

from collections.abc import Sequence
from dataclasses import replace

from dreamshard.files.text import gib
from dreamshard.recipes import Recipe
from flows.rules.heldout import split_by_training
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Topology
from storage.store import Store

_FEWEST_TABLES = 2
"""Of a task that has a choice of devices."""


def setting_of(store: Store, versions: Sequence[Version]) -> tuple[Recipe, str, str]:
    """Recipe and dataset of a comparison, and a sentence on them.

    A version of a fixed model makes all be compared on one model, since no table is held out for it.

    Raises:
        ValueError: too few tables are held out for all of the versions, or the tables are not in this lake.
    """
    first, newest = versions[0], max(versions, key=lambda version: (version.created, version.number))
    bench, recipe, dataset = first.made_of.testbed, first.made_of.recipe, newest.made_of.dataset
    testbed = bench.kind if bench.name == "auto" else bench.name  # as it was then
    tasks, fixed = recipe.tasks, next((version for version in versions if version.made_of.is_fixed), None)
    if fixed is not None:
        tasks, what = replace(tasks, mode="fixed"), f"one fixed model, since no table is held out for {fixed}"
    else:
        unseen = len(split_by_training(store, dataset, versions)[1])
        if unseen < _FEWEST_TABLES:
            raise ValueError(
                f"only {unseen} tables of dataset {dataset} are new to all of {', '.join(map(str, versions))}; compare fewer"
            )
        tasks = replace(tasks, mode="pool", tables_per_task=min(tasks.tables_per_task, unseen))
        what = f"tasks of {tasks.tables_per_task} tables that are held out for all"
    sentence = (
        f"compared as {first} was trained, on dataset {dataset}: {what}; {tasks.num_devices} devices of "
        f"{gib(tasks.memory_bytes)}, testbed {testbed}"
    )
    return replace(recipe, tasks=tasks, testbed=testbed), dataset, sentence


def other_hardware(versions: Sequence[Version], measured: Topology) -> str:
    """Says which versions' costs are of other hardware, or another number of devices, than is measured on; empty if none."""
    others = {str(version): topology for version in versions if (topology := version.made_of.topology) != measured}
    if not others:
        return ""
    of = " and ".join(f"{version} of {topology}" for version, topology in others.items())
    return f"measured on {measured}, but the predictions are those of {of}"
