"""Prefect tasks that draw placement tasks: of a table split, of tables held out for several versions, of one model."""

from collections.abc import Mapping

import torch

from dreamshard.recipes import TasksConfig
from dreamshard.tables import Tables
from dreamshard.task_sets.sampling import EMPTY_SPLIT, split_tables
from flows.decisions.heldout import split_by_training
from flows.runtime.content_keys import content_key
from flows.runtime.progress import publish_progress
from flows.runtime.retries import retried_task
from flows.tasks.drawing_model import draw_model
from storage.lake.table_splits import read_table_split, write_table_split
from storage.store import Store


@retried_task("draw tasks")
def draw_tasks(store: Store, dataset: str, config: TasksConfig, seed: int, split_of: str | None = None) -> str:
    """Tables -> placement tasks to train on and held-out ones, in the lake; returns the key of both sets.

    Those of a pool are of two parts of its tables; those of a fixed model are the model and variants of it.

    Args:
        dataset: version of the tables.
        split_of: key of earlier task sets whose table split is kept; by default the split is drawn.

    Raises:
        ValueError: a task fits no placement; nothing has been measured by then.
        NoPlacementError: a fixed model fits no placement.
    """
    if config.mode == "fixed":
        return draw_model(store, dataset, config, seed, split_of)
    return _draw_split(store, dataset, config, seed, split_of)


@retried_task("draw tasks held out for all")
def draw_heldout_tasks(store: Store, dataset: str, config: TasksConfig, seed: int, versions: list[str]) -> str:
    """Tables that none of the versions was trained on -> placement tasks in the lake; returns their key.

    If the versions were trained on the split that `draw_tasks` draws, they are its tasks. Of a fixed model no table is held
    out, so the tasks are those that `draw_tasks` draws.

    Raises:
        ValueError: too few tables are held out for all of them, or a task fits no placement.
    """
    if config.mode == "fixed":
        return draw_model(store, dataset, config, seed)
    seen, unseen = split_by_training(store, dataset, versions)
    generator = torch.Generator().manual_seed(seed)
    if unseen.names == split_tables(store.lake.read_dataset(dataset), generator)[1].names:
        return _draw_split(store, dataset, config, seed)
    if len(unseen) < config.tables_per_task:
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} were trained on by none of the versions {', '.join(versions)}, "
            f"but a task takes {config.tables_per_task}, so no task is held out for all of them; compare fewer versions at "
            "once, give fewer --tables-per-task, ingest tables that are new to them, or compare on all tables as one model "
            "with --mode fixed"
        )
    key = content_key("compare", dataset, config, seed, list(seen.names))
    can_train = len(seen) >= config.tables_per_task  # otherwise rivals that learn report that they have no tasks
    _write_tasks(
        store, dataset, config, seed, key, ({"train": seen} if can_train else {}) | {"test": unseen}, generator
    )
    return key


def _draw_split(store: Store, dataset: str, config: TasksConfig, seed: int, split_of: str | None = None) -> str:
    generator, pool = torch.Generator().manual_seed(seed), store.lake.read_dataset(dataset)
    new_split = EMPTY_SPLIT.with_tables(*split_tables(pool, torch.Generator().manual_seed(seed)))
    earlier = EMPTY_SPLIT if split_of is None else read_table_split(store.lake, split_of)
    train, test = split_tables(pool, generator, earlier)
    split = earlier.with_tables(train, test)
    own = [] if split == new_split else [sorted(split.train), sorted(split.test)]
    key = content_key(dataset, config, seed, *own)
    _write_tasks(store, dataset, config, seed, key, {"train": train, "test": test}, generator)
    write_table_split(store.lake, key, split)
    publish_progress("tasks", 1, 1, f"{config.num_train} to train on, {config.num_test} held out")
    return key


def _write_tasks(
    store: Store,
    dataset: str,
    config: TasksConfig,
    seed: int,
    key: str,
    parts: Mapping[str, Tables],
    generator: torch.Generator,
) -> None:
    counts = {"train": config.num_train, "test": config.num_test}
    for name, pool in parts.items():
        tasks = config.drawn_from(pool, counts[name], generator, name)
        store.lake.write_tasks(tasks, dataset, name, key, seed)
