"""Which tables are held out for every version that is compared: those that none of them was trained on."""

from collections.abc import Sequence

import torch

from dreamshard.recipes import TasksConfig
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask, sample_tasks, split_tables
from flows.runtime.caching import content_key
from flows.tasks import training
from storage.lake import home_lake
from storage.lake.table_splits import has_table_split, read_table_split
from storage.mlflow_store import registry
from storage.settings import Settings


def split(dataset: str, versions: Sequence[str]) -> tuple[Tables, Tables]:
    """The tables of a dataset that any of the versions was trained on, and those that are held out for all.

    A table counts as trained on if one of its name was: one that has grown since is no new table. In the dataset's order.
    """
    pool = home_lake().read_dataset(dataset)
    names = {name for version in versions for name in trained_names(version)}
    known = torch.tensor([name in names for name in pool.names], dtype=torch.bool)
    return pool.select(known.nonzero()[:, 0]), pool.select((~known).nonzero()[:, 0])


def trained_on(version: str) -> Tables:
    """The tables that a version was trained on: the training half of its dataset.

    Raises:
        ValueError: its dataset is not in the lake.
    """
    tags = registry.version_tags(Settings.load(), version)
    pool = home_lake().read_dataset(tags["dataset"])
    if "seed" not in tags:  # of an older release, which did not say with which seed it was split
        return pool
    return split_tables(pool, torch.Generator().manual_seed(int(tags["seed"])))[0]


def trained_names(version: str) -> frozenset[str]:
    """Names of all tables that a version, or one that it went on from, was trained on; also of those that are gone."""
    tasks = registry.version_tags(Settings.load(), version).get("tasks", "")
    if tasks and has_table_split(home_lake(), tasks):
        return read_table_split(home_lake(), tasks).train
    return frozenset(trained_on(version).names)


def not_held_out_for(version: str, tasks: Sequence[PlacementTask]) -> str:
    """What to say of tasks, held out for another placer, that hold tables which `version` was trained on; else nothing."""
    if registry.version_tags(Settings.load(), version).get("dataset") not in home_lake().dataset_versions():
        return f"which tables version {version} was trained on is not known here: its dataset is not in this lake"
    names = {name for task in tasks for name in task.tables.names}
    known = names & trained_names(version)
    if not known:
        return ""
    return f"version {version} was trained on {len(known)} of the {len(names)} tables of these tasks, which favours it"


def draw(dataset: str, config: TasksConfig, seed: int, versions: Sequence[str]) -> str:
    """Tasks of the tables held out for all versions, in the lake; returns their key.

    They are those that `evaluate` measures where the versions were trained on the same half as it holds back.

    Raises:
        ValueError: too few tables are held out for all, or a task fits no placement.
    """
    seen, unseen = split(dataset, versions)
    generator = torch.Generator().manual_seed(seed)
    if unseen.names == split_tables(home_lake().read_dataset(dataset), generator)[1].names:
        return training.draw_tasks(dataset, config, seed)
    if len(unseen) < config.tables_per_task:
        numbers = ", ".join(versions)
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} were trained on by none of the versions {numbers}, and a "
            f"task takes {config.tables_per_task}, so none is held out for all of them; compare fewer versions at once, "
            "give fewer --tables-per-task, or ingest tables that are new to them"
        )
    key = content_key("compare", dataset, config, seed, list(seen.names))
    sizes = (config.tables_per_task, config.num_devices, config.memory_bytes, generator)
    for half, pool, count in (("train", seen, config.num_train), ("test", unseen, config.num_test)):
        if len(pool) >= config.tables_per_task:  # rivals that learn say so where there is nothing to train on
            drawn = sample_tasks(pool, count, *sizes, precision=config.precision, optimizer=config.optimizer, name=half)
            home_lake().write_tasks(drawn, dataset, half, key, seed)
    return key
