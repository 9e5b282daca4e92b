"""How a stage begins: options and store -> recipe with all sizes -> tasks -> `Training`, whose key the steps pass on.

Tasks are drawn of a table split, of tables held out for several versions, or of one model. Those of a model are the model
itself, and variants of it that lack some tables. Nothing is held out by table there: held out are placements, and variants
that differ from those trained on.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest

import torch
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from dreamshard.costs import library_versions
from dreamshard.recipes import Recipe, sized
from dreamshard.search.packing import packed_columns, split_by_columns
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds.base import Capacity
from dreamshard.workloads.task_sampling import EMPTY_SPLIT, split_tables
from flows.forms.form import configure
from flows.forms.options import StageOptions
from flows.rules.contestants import split_by_training
from flows.rules.warm_start import find_start
from flows.runtime import testbed_pool
from flows.runtime.environment import source_revision
from flows.runtime.tasks import announce, content_key, progress_artifact, report_progress, retried_task
from storage.lake import catalog
from storage.mlflow_store import runs
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, trainings
from storage.run_records.trainings import Training, named_model
from storage.store import Store, open_store

torch.set_num_threads(1)  # arrays of placers are small, so further threads wait for each other

MODEL = "model"
"""Name of the task of the model itself, which is the first of its set."""

_LEFT_OUT_SHARE = 0.2  # of the tables, at most
_BUSY_SHARE = 0.5  # of a device's even share of the work: tables above it are worth splitting
_NARROWEST_SHARD = 16  # columns
_DRAWS_PER_VARIANT = 20  # before a new variant counts as impossible


@contextmanager
def running(store: Store, name: str, config: Recipe, seed: int) -> Iterator[Run]:
    """Keep an MLflow run of the flow `name` and all testbeds open while the block runs, and show its progress.

    If the same Prefect run was interrupted, its MLflow run is opened again.
    """
    context, revision = FlowRunContext.get(), source_revision()
    labels: dict[str, str] = {}
    flow_run = None if context is None else context.flow_run
    tags = {
        "model": named_model(config),
        "recipe": config.name,
        "seed": str(seed),
        "commit": revision,
        "mlflow.source.git.commit": revision.removesuffix("-dirty"),
    }
    if flow_run is not None:
        labels[runs.FLOW_RUN], tags["prefect.flow_run"] = str(flow_run.id), flow_run.name
        tags[runs.PREFECT_RUN] = url_for(flow_run) or str(flow_run.id)  # a server of this process alone has no pages
    tracked = runs.open_run(store, f"{name} {tags['model']}", labels, tags)
    with tracked as run, testbed_pool.shared_testbeds(), progress_artifact():
        try:
            yield run
        finally:
            catalog.write_catalog(store)


@contextmanager
def single_stage(name: str, options: StageOptions) -> Iterator[tuple[Store, Run, str]]:
    """Run the block as the flow `name` of one stage; yields the store, its run and the training's key."""
    config, dataset = configured(store := open_store(), options)
    with running(store, name, config, options.seed) as run:
        yield store, run, prepare(store, config, dataset, options.seed)


@retried_task("prepare training")
def prepare(store: Store, config: Recipe, dataset: str, seed: int, *, full: bool = False) -> str:
    """Recipe and tables -> start and tasks; returns the key of the training, which may have begun before.

    Args:
        full: start from scratch.
    """
    testbed = testbed_pool.testbed_reference(store, config, dataset, seed)
    training = Training(recipe=config, dataset=dataset, testbed=testbed)
    start = find_start(store, training, full=full)
    tasks = draw_tasks(store, training, start.split_of)
    training = replace(training, tasks=tasks, warm=start.warm, start=start.why)
    before = [] if start.warm is None else [start.warm.iteration, *start.warm.trainings]
    # measured with other libraries, costs are others
    key = content_key(training.model, dataset, tasks, training.config, testbed, *before, library_versions())
    trainings.write(store, key, training)
    return key


def configured(store: Store, options: StageOptions) -> tuple[Recipe, str]:
    """The recipe of the options with all sizes, and the dataset of the home that it is applied to.

    A stage run manually takes the dataset that was ingested last, of the model if one is named, unless the options name one.

    Raises:
        ValueError: nothing has been ingested, or not this version.
    """
    dataset = options.dataset or store.lake.newest_dataset(options.model or "")
    if dataset is None:
        raise ValueError("nothing has been ingested; run `dreamshard ingest`")
    config = configure(options, source=store.lake.dataset_source(dataset))
    tables = store.lake.read_dataset(dataset)
    config = replace(config, workload=replace(config.workload, batch_size=tables.batch_size))
    return with_sizes(config, tables, testbed_pool.check_testbed(store, config)), dataset


def with_sizes(config: Recipe, tables: Tables, capacity: Capacity) -> Recipe:
    """The recipe with its mode and sizes for these tables, which the run shows first."""
    config, sentence = sized(config, tables, capacity)
    announce(sentence)
    return config


def last_iteration(store: Store, key: str) -> int:
    """Number of the training's last complete iteration, at least 1.

    Raises:
        ValueError: the training has finished no iteration.
    """
    last = checkpoints.last_iteration(store, key)
    if not last:
        training = trainings.read(store, key)
        raise ValueError(
            f"no training of recipe {training.recipe.name!r} with seed {training.testbed.seed} on "
            f"{training.testbed.identity} has finished an iteration here, so there is no placer; run `dreamshard train` "
            "with the same options first"
        )
    return last


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
        trained, heldout = _model_tasks(training, config.task(pool, MODEL))
    else:
        train, test = split_tables(pool, generator, earlier)
        trained = config.sample(train, config.num_train, generator, "train")
        heldout = config.sample(test, config.num_test, generator, "test")
    split = earlier.with_tables(train, test)
    key = content_key(dataset, config, seed, sorted(split.train), sorted(split.test))
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


def fixed_tasks(
    model: PlacementTask,
    num_variants: int,
    generator: torch.Generator,
    *,
    name: str,
    used: Collection[frozenset[str]] = (),
) -> list[PlacementTask]:
    """The model, split by columns if a device cannot hold its tables, and at most `num_variants` distinct variants.

    A variant lacks up to a fifth of the tables.

    Args:
        model: all tables, whole.
        name: variants are called `{name}-000 (-2)`, by the number of tables that they lack.
        used: tables of variants that must not be drawn again.

    Raises:
        NoPlacementError: the model fits its devices under no split.
    """
    size, tasks = len(model.tables), [replace(split_to_fit(model), name=MODEL)]
    seen, most = {frozenset(model.tables.names), *used}, max(1, round(_LEFT_OUT_SHARE * size))
    for _ in range(_DRAWS_PER_VARIANT * num_variants if size > 2 else 0):
        if len(tasks) > num_variants:
            break
        count = int(torch.randint(1, most + 1, (), generator=generator))
        tables = model.tables.select(torch.randperm(size, generator=generator)[count:].sort().values)
        if (names := frozenset(tables.names)) not in seen:
            seen.add(names)
            variant = replace(model, tables=tables, name=f"{name}-{len(tasks) - 1:03} (-{count})")
            tasks.append(split_to_fit(variant))
    return tasks


def split_tasks(model: PlacementTask, count: int, generator: torch.Generator) -> list[PlacementTask]:
    """The model with its busiest tables split by columns at random, to learn what such shards cost; at most `count`.

    A placer splits tables whose work comes near a device's even share, so whole tables alone would leave its own placements
    unlike anything measured. There are none if no table is that busy.
    """
    work = model.tables.pooling_factor.double() * model.tables.dim
    shares = model.num_devices * work / work.sum().clamp(min=1e-9)  # [T] of a device's even share
    most = torch.minimum(model.tables.dim // _NARROWEST_SHARD, (2 * shares).ceil().long() + 1)
    most = torch.where(shares > _BUSY_SHARE, most, 1).clamp(min=1)
    tasks: list[PlacementTask] = []
    for number in range(count):
        parts = 1 + (torch.rand(len(most), generator=generator) * most).long()
        split = replace(model, name=f"split-{number:03}")
        drawn = split_by_columns(split, parts)
        if int(parts.max()) > 1 and int(drawn.table_bytes.sum()) <= int(drawn.capacity_bytes.sum()):
            tasks.append(drawn)
    return tasks


def split_to_fit(task: PlacementTask) -> PlacementTask:
    """The task with the coarsest column splits that can be packed; raises NoPlacementError if none is found."""
    return Shards.of(task, packed_columns(task)).as_task()
