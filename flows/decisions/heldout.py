"""Which tables and placements are held out for versions: those that none of them was trained on."""

from collections.abc import Sequence

import torch

from dreamshard.tables import Tables
from dreamshard.task_sets.fixed_model import is_fixed_model
from dreamshard.tasks import PlacementTask
from storage.lake.table_splits import has_table_split, read_table_split
from storage.mlflow_store import registry
from storage.mlflow_store.version_names import in_words
from storage.run_records import lineage, training_effort
from storage.store import Store


def split_by_training(store: Store, dataset: str, versions: Sequence[str]) -> tuple[Tables, Tables]:
    """Split a dataset into tables that any of the versions was trained on, and tables that are held out for all.

    Tables are compared by name: one that has grown since training is not new. Both parts keep the dataset's order.
    """
    pool = store.lake.read_dataset(dataset)
    names = {name for version in versions for name in trained_names(store, version)}
    trained = torch.tensor([name in names for name in pool.names], dtype=torch.bool)
    return pool.select(trained.nonzero()[:, 0]), pool.select((~trained).nonzero()[:, 0])


def trained_names(store: Store, version: str) -> frozenset[str]:
    """Names of all tables that a version, or one that it was warm-started from, was trained on; some may be gone.

    Raises:
        ValueError: the version does not say, or its table split is not in the lake.
    """
    origin = lineage.origin_of(store, version)
    if origin is None:
        raise ValueError(
            f"{in_words(version)} does not say what it was trained on, so no tables are known to be held out for it"
        )
    return read_table_split(store.lake, origin.tasks).train


def bias_caveat(store: Store, version: str | None, tasks: Sequence[PlacementTask]) -> str:
    """A warning that tasks hold tables which `version` was trained on, or that this is unknown; empty without either.

    Of a fixed model all tables are trained on, by every version.
    """
    if version is None or is_fixed_model(tasks):
        return ""
    origin = lineage.origin_of(store, version)
    if origin is None or not has_table_split(store.lake, origin.tasks):
        return f"which tables {in_words(version)} was trained on is not known here: its table split is not in this lake"
    names = {name for task in tasks for name in task.tables.names}
    seen = names & trained_names(store, version)
    if not seen:
        return ""
    return f"{in_words(version)} was trained on {len(seen)} of the {len(names)} tables of these tasks, which favours it"


def trainings_behind(store: Store, training: str) -> set[str]:
    """A training and those whose cost samples it was fitted to as well."""
    warm = training_effort.read_origin(store, training).warm
    return {training, *(warm.trainings if warm else ())}


def trainings_of_versions(store: Store, versions: Sequence[str]) -> set[str]:
    """The trainings of versions, as far as their cost samples can be known here."""
    trainings: set[str] = set()
    for version in versions:
        tags, origin = registry.version_tags(store.settings, version), lineage.origin_of(store, version)
        if origin is not None:
            trainings |= {tags["training"], *(origin.warm.trainings if origin.warm else ())}
    return trainings
