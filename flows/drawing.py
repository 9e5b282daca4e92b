"""Draws placement tasks: of a table split, of tables held out for several versions, of one model."""

from itertools import zip_longest

import torch

from dreamshard.tasks import PlacementTask
from dreamshard.workloads.task_sampling import EMPTY_SPLIT, split_tables
from flows.rules.fixed_model import MODEL, fixed_tasks, split_tasks
from flows.rules.heldout import split_by_training
from flows.runtime.identity import content_key
from flows.runtime.progress import report_progress
from flows.runtime.retries import retried_task
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Training
from storage.store import Store


def draw_tasks(store: Store, training: Training, split_of: str | None = None) -> str:
    """Tables -> placement tasks to train on and held-out ones, in the lake; returns the key of both sets.

    Tasks of a pool are of two parts of its tables; tasks of a fixed model are the model and variants of it.

    Args:
        training: its recipe, tables and testbed.
        split_of: key of earlier task sets whose tables keep their side; by default the split is drawn.

    Raises:
        ValueError: a task fits no placement; nothing has been measured by then.
        NoPlacementError: a fixed model fits no placement.
    """
    dataset, config, seed = training.dataset, training.recipe.tasks, training.testbed.seed
    pool, generator = store.lake.read_dataset(dataset), torch.Generator().manual_seed(seed)
    earlier = EMPTY_SPLIT if split_of is None else store.lake.read_table_split(split_of)
    if config.mode == "fixed":
        train, test = pool, pool.select([])
    else:
        train, test = split_tables(pool, generator, earlier)
    split = earlier.with_tables(train, test)
    key = content_key(dataset, config, seed, sorted(split.train), sorted(split.test))
    if config.mode == "fixed":
        trained, heldout = _model_tasks(training, config.task(pool, MODEL))
    else:
        trained = config.sample(train, config.num_train, generator, "train")
        heldout = config.sample(test, config.num_test, generator, "test")
    store.lake.write_tasks(trained, dataset, "train", key, seed)
    store.lake.write_tasks(heldout, dataset, "test", key, seed)
    store.lake.write_table_split(key, split)
    report_progress("tasks", 1, 1, f"{len(trained)} to train on, {len(heldout)} held out")
    return key


@retried_task("draw tasks held out for all")
def draw_heldout_tasks(store: Store, training: Training, versions: list[Version]) -> str:
    """Tables that none of the versions was trained on -> placement tasks in the lake; returns their key.

    If the versions were trained on the split that `draw_tasks` draws, they are its tasks. Of a fixed model no table is held
    out, so the tasks are those that `draw_tasks` draws.

    Raises:
        ValueError: too few tables are held out for all of them, or a task fits no placement.
    """
    dataset, config, seed = training.dataset, training.recipe.tasks, training.testbed.seed
    seen, unseen = split_by_training(store, dataset, versions)
    generator = torch.Generator().manual_seed(seed)
    _, test = split_tables(store.lake.read_dataset(dataset), generator)
    if config.mode == "fixed" or unseen.names == test.names:
        return draw_tasks(store, training)
    if len(unseen) < config.tables_per_task:
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} are held out for all versions, but a task takes "
            f"{config.tables_per_task}; compare fewer versions, or give fewer --tables-per-task or --mode fixed"
        )
    key = content_key("compare", dataset, config, seed, list(seen.names))
    store.lake.write_tasks(config.sample(unseen, config.num_test, generator, "test"), dataset, "test", key, seed)
    return key


def _model_tasks(training: Training, model: PlacementTask) -> tuple[list[PlacementTask], list[PlacementTask]]:
    """All tables of a dataset as one model -> tasks to train on, and held-out ones.

    Half of the training tasks are the model itself; the others are variants of it, and it with busy tables split by columns.
    The held-out tasks are the model, of which placements are held out, and variants that no training task equals.
    """
    config, seed = training.recipe.tasks, training.testbed.seed
    num_train, num_test = max(1, config.num_train // 2), max(1, config.num_test - 1)
    generators = [torch.Generator().manual_seed(2 * seed + side) for side in range(2)]
    train = fixed_tasks(model, num_train, generators[0], name="train")
    used = [frozenset(task.tables.names) for task in train]
    heldout = fixed_tasks(model, num_test, generators[1], name="variant", used=used)
    split_up = split_tasks(heldout[0], num_train, torch.Generator().manual_seed(seed))
    others = [task for pair in zip_longest(train[1:], split_up) for task in pair if task is not None]
    return [task for other in others for task in (heldout[0], other)] or heldout[:1], heldout
