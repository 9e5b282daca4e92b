"""How a stage begins: options and store -> recipe with all sizes -> `Training`, whose key the steps pass on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from dreamshard.costs import library_versions
from dreamshard.recipes import Recipe, batch_size_of, sized
from dreamshard.tables import Tables
from dreamshard.testbeds.base import Capacity
from flows.drawing import draw_tasks
from flows.forms.configuration import configure
from flows.forms.options import StageOptions
from flows.reports.mlflow_tracking import PREFECT_RUN
from flows.rules.warm_start import find_start
from flows.runtime import testbed_pool
from flows.runtime.identity import content_key, source_revision
from flows.runtime.tasks import announce, progress_artifact, retried_task
from storage.lake import catalog
from storage.mlflow_store import runs
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, trainings
from storage.run_records.trainings import Training, named_model
from storage.store import Store


@contextmanager
def running(store: Store, name: str, config: Recipe, seed: int) -> Iterator[Run]:
    """Keep an MLflow run of the flow `name` and all testbeds open while the block runs, and show its progress.

    If the same Prefect run was interrupted, its MLflow run is opened again.
    """
    context, revision = FlowRunContext.get(), source_revision()
    flow_run = None if context is None else context.flow_run
    tags = {
        "model": named_model(config),
        "recipe": config.name,
        "seed": str(seed),
        "commit": revision,
        "mlflow.source.git.commit": revision.removesuffix("-dirty"),
    }
    if flow_run is not None:
        tags["prefect.flow_run"] = flow_run.name
        tags[PREFECT_RUN] = url_for(flow_run) or str(flow_run.id)  # a server of this process alone has no pages
    with (
        runs.open_run(
            store, f"{name} {tags['model']}", key=None if flow_run is None else str(flow_run.id), tags=tags
        ) as run,
        testbed_pool.shared_testbeds(),
        progress_artifact(),
    ):
        try:
            yield run
        finally:
            catalog.write_catalog(store)


@contextmanager
def stage(store: Store, name: str, options: StageOptions) -> Iterator[tuple[Run, str]]:
    """Run the block as the flow `name` of one stage; yields its run and the training's key."""
    config, dataset = configured(store, options)
    with running(store, name, config, options.seed) as run:
        yield run, prepare(store, config, dataset, options.seed)


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
    config = replace(config, workload=replace(config.workload, batch_size=batch_size_of(tables)))
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
