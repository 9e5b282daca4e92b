"""Tables and placements that are held out for versions, as none of them was trained on them; the setting of a comparison."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from dreamshard.files import gib
from dreamshard.recipes import Recipe
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from flows.rules.fixed_model import is_fixed_model
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Topology
from storage.store import Store

_FEWEST_TABLES = 2
"""Of a task that has a choice of devices."""


def split_by_training(store: Store, dataset: str, versions: Sequence[Version]) -> tuple[Tables, Tables]:
    """Split a dataset into tables that any of the versions was trained on, and tables that are held out for all.

    Tables are compared by name: one that has grown since training is not new. Both parts keep the dataset's order.

    Raises:
        ValueError: the table split of a version is not in the lake.
    """
    pool = store.lake.read_dataset(dataset)
    names = {name for version in versions for name in store.lake.read_table_split(version.made_of.tasks).train}
    trained = torch.tensor([name in names for name in pool.names], dtype=torch.bool)
    return pool.select(trained.nonzero()[:, 0]), pool.select((~trained).nonzero()[:, 0])


def bias_caveat(store: Store, version: Version | None, tasks: Sequence[PlacementTask]) -> str:
    """A warning that tasks hold tables which `version` was trained on, or that this is unknown; empty without either.

    Of a fixed model all tables are trained on, by every version.
    """
    if version is None or is_fixed_model(tasks):
        return ""
    if not store.lake.has_table_split(version.made_of.tasks):
        return f"which tables {version} was trained on is not known here: its table split is not in this lake"
    names = {name for task in tasks for name in task.tables.names}
    seen = names & store.lake.read_table_split(version.made_of.tasks).train
    return (
        f"{version} was trained on {len(seen)} of the {len(names)} tables of these tasks, which favours it"
        if seen
        else ""
    )


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
