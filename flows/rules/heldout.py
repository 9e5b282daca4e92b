"""Which tables and placements are held out for versions: those that none of them was trained on."""

from collections.abc import Sequence

import torch

from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from flows.rules.fixed_model import is_fixed_model
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Training
from storage.store import Store


def split_by_training(store: Store, dataset: str, versions: Sequence[Version]) -> tuple[Tables, Tables]:
    """Split a dataset into tables that any of the versions was trained on, and tables that are held out for all.

    Tables are compared by name: one that has grown since training is not new. Both parts keep the dataset's order.

    Raises:
        ValueError: the table split of a version is not in the lake.
    """
    pool = store.lake.read_dataset(dataset)
    names = {name for version in versions for name in trained_names(store, version)}
    trained = torch.tensor([name in names for name in pool.names], dtype=torch.bool)
    return pool.select(trained.nonzero()[:, 0]), pool.select((~trained).nonzero()[:, 0])


def trained_names(store: Store, version: Version) -> frozenset[str]:
    """Names of all tables that a version, or one that it was warm-started from, was trained on; some may be gone.

    Raises:
        ValueError: its table split is not in the lake.
    """
    return store.lake.read_table_split(version.made_of.tasks).train


def bias_caveat(store: Store, version: Version | None, tasks: Sequence[PlacementTask]) -> str:
    """A warning that tasks hold tables which `version` was trained on, or that this is unknown; empty without either.

    Of a fixed model all tables are trained on, by every version.
    """
    if version is None or is_fixed_model(tasks):
        return ""
    if not store.lake.has_table_split(version.made_of.tasks):
        return f"which tables {version} was trained on is not known here: its table split is not in this lake"
    names = {name for task in tasks for name in task.tables.names}
    seen = names & trained_names(store, version)
    return (
        f"{version} was trained on {len(seen)} of the {len(names)} tables of these tasks, which favours it"
        if seen
        else ""
    )


def trainings_behind(key: str, training: Training) -> set[str]:
    """A training and those whose cost samples it was fitted to as well: their placements are not held out."""
    return {key, *(training.warm.trainings if training.warm else ())}
