"""Draws the placement tasks of one fixed model: the model itself, and variants of it with drifted tables."""

from itertools import zip_longest

import torch

from dreamshard.recipes import TasksConfig
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.fixed_model import MODEL, DriftedTables, draw_drift, fixed_tasks, split_tasks
from dreamshard.task_sets.sampling import EMPTY_SPLIT
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import WorkloadTable, statistics
from dreamshard.workloads.drift import drifted
from flows.runtime.content_keys import content_key
from flows.runtime.progress import publish_progress, report_progress
from storage.lake import drifted_tables
from storage.lake.table_splits import read_table_split, write_table_split
from storage.store import Store

MOST_LOOKUPS = 2**26
"""Of the drifted tables of training, and of those held out: seconds to derive, 256 MiB of indices."""


def draw_model(store: Store, dataset: str, config: TasksConfig, seed: int, split_of: str | None = None) -> str:
    """All tables of a dataset -> tasks to train on and held-out ones, in the lake; returns the key of both sets.

    Half of the training tasks are the model itself; the others are variants of it, and it with busy tables split by columns.
    The held-out tasks are the model, of which placements are held out, and variants that no training task equals.

    Args:
        split_of: key of earlier task sets, whose tables count as trained on too.

    Raises:
        ValueError: the tables exceed the devices.
        NoPlacementError: the model fits its devices under no split.
    """
    pool = store.lake.read_dataset(dataset)
    earlier = EMPTY_SPLIT if split_of is None else read_table_split(store.lake, split_of)
    split = earlier.with_tables(pool, pool.select([]))
    own = [] if split_of is None else [sorted(split.train), sorted(split.test)]
    key = content_key("fixed", dataset, config, seed, *own)
    model = config.of_all(pool, MODEL)
    num_train, num_test = max(1, config.num_train // 2), max(1, config.num_test - 1)
    train = _tasks(store, dataset, model, num_train, 2 * seed, "train")
    used = [task.whole_tables for task in train]
    model_task, *variants = _tasks(store, dataset, model, num_test, 2 * seed + 1, "variant", used)
    split_up = split_tasks(model_task, num_train, torch.Generator().manual_seed(seed))
    others = [task for pair in zip_longest(train[1:], split_up) for task in pair if task is not None]
    trained = [task for other in others for task in (model_task, other)] or [model_task]
    store.lake.write_tasks(trained, dataset, "train", key, seed)
    store.lake.write_tasks([model_task, *variants], dataset, "test", key, seed)
    write_table_split(store.lake, key, split)
    publish_progress(
        "tasks", 1, 1, f"the model and {len(train) - 1} variants to train on, {len(variants)} variants held out"
    )
    return key


def _tasks(
    store: Store,
    dataset: str,
    model: PlacementTask,
    num_variants: int,
    seed: int,
    name: str,
    used: list[frozenset[str]] | None = None,
) -> list[PlacementTask]:
    drift = draw_drift(model.tables, seed=seed, most_lookups=MOST_LOOKUPS // 2)
    pool = _pool_with(store, dataset, model.tables, drift)
    generator = torch.Generator().manual_seed(seed)
    return fixed_tasks(model, pool, drift, num_variants, generator, name=name, used=used or ())


def _pool_with(store: Store, dataset: str, model: Tables, drift: DriftedTables) -> Tables:
    """The pool of a dataset after drifted tables have been derived, unless it has them."""
    lake = store.lake
    known = drifted_tables.with_lookups(lake.root, lake.pool_rows(dataset), [each.name for each in drift.all])
    missing = [each for each in drift.all if each.name not in known]
    lookups, parts = lake.lookup_source(dataset), []
    for done, each in enumerate(missing, start=1):
        t = model.names.index(each.table)
        table = WorkloadTable(each.table, int(model.rows[t]), int(model.dim[t]), lookups(each.table))
        derived = drifted(table, each)
        parts.append(statistics(derived))
        lake.write_table_lookups(derived, parts[-1])
        report_progress("tasks", done, len(missing) + 1, each.name)
    if parts:
        drifted_tables.write_drifted(lake.root, concatenate(parts), dataset)
    return lake.read_pool(dataset)
