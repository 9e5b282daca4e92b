"""Inputs of a stage that runs on its own: its configuration, and what earlier stages left in the store."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from dreamshard.recipes import Recipe
from dreamshard.sizing import Sizes, batch_size_of
from flows.decisions.warm_start import WarmStart
from flows.forms.configuration import configure
from flows.forms.options import RecipeOptions, StageOptions, TaskOptions
from flows.reports import mlflow_tracking
from flows.runtime import run_locks, testbed_pool
from flows.runtime.progress import progress_artifact
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks.drawing import draw_tasks
from flows.tasks.sizing import settle
from flows.tasks.training import find_start, training_key
from storage.run_records import checkpoints
from storage.store import Store, open_store


@dataclass(frozen=True, kw_only=True)
class StageInputs:
    """What a stage works on.

    Attributes:
        config: the recipe with the options that override it, its mode and sizes settled.
        sizes: what was chosen.
        dataset: version of the tables.
        tasks: key of the task set drawn from them.
        start: how training on them begins.
    """

    config: Recipe
    sizes: Sizes
    dataset: str
    tasks: str
    start: WarmStart


@dataclass(frozen=True, kw_only=True)
class Stage(StageInputs):
    """A running stage.

    Attributes:
        store: where everything is kept.
        bench: where costs are measured.
        training: key of the training with these inputs, whether it has been started or not.
        run: id of the stage's MLflow run.
        parent: id of the MLflow run above it, whose figures MLflow compares.
    """

    store: Store
    bench: TestbedReference
    training: str
    run: str
    parent: str

    def last_iteration(self) -> int:
        """Number of the training's last complete iteration; 0 for none.

        Raises:
            ValueError: the training has not been started.
        """
        last = checkpoints.last_iteration(self.store, self.training)
        if last is None:
            raise ValueError(
                f"there is no training of recipe {self.config.name!r} with seed {self.bench.seed} on "
                f"{self.bench.identity} in this home that starts {self.start.reason.sentence}, so there is nothing to "
                "continue from; run `dreamshard train` with the same options first, or compare versions with "
                "`dreamshard compare`"
            )
        return last

    @contextmanager
    def next_iteration(self) -> Iterator[int]:
        """Number of the iteration to work on, while no other run works on the same training.

        Raises:
            ValueError: the training has not been started.
        """
        with run_locks.training_lock(self.store, self.training):
            yield self.last_iteration() + 1


def open_for(options: RecipeOptions) -> Store:
    """The store, with the versions of the algorithm that the options train."""
    return open_store().of(configure(options).training.algorithm)


@contextmanager
def stage(store: Store, name: str, options: StageOptions, *, progress: str = "") -> Iterator[Stage]:
    """Run the block as the stage `name`: with its inputs, an MLflow run, and testbeds that stay open until its end.

    Args:
        store: what the stage works on.
        name: of the stage in MLflow.
        options: see `inputs`.
        progress: see `running`.
    """
    inputs = stage_inputs(store, options)
    with running(store, name, inputs.config, inputs.sizes, options.seed, progress=progress) as (run, parent):
        bench = testbed_pool.testbed_reference(store, inputs.config, inputs.dataset, options.seed)
        key = training_key(inputs.dataset, inputs.tasks, inputs.start, bench)
        yield Stage(**vars(inputs), store=store, bench=bench, training=key, run=run, parent=parent)


def stage_inputs(store: Store, options: StageOptions) -> StageInputs:
    """The recipe and dataset of the options, as `configured`; the dataset's tasks are drawn if they have not been."""
    config, sizes, dataset = configured(store, options)
    start = find_start(store, config, dataset, testbed_pool.testbed_reference(store, config, dataset, options.seed))
    tasks = draw_tasks(store, dataset, config.tasks, options.seed, start.split_of)
    return StageInputs(config=config, sizes=sizes, dataset=dataset, tasks=tasks, start=start)


@contextmanager
def running(
    store: Store, name: str, config: Recipe, sizes: Sizes, seed: int, *, progress: str = ""
) -> Iterator[tuple[str, str]]:
    """Keep an MLflow run of the stage, below one of the flow run, and all testbeds open while the block runs.

    Args:
        name: of the stage in MLflow.
        config: the recipe, logged with the run.
        sizes: logged with the run.
        seed: logged with the run.
        progress: the chain's stage whose progress Prefect shows; empty for none.

    Yields:
        Ids of the stage's run and of the run above it.
    """
    shown = progress_artifact(progress) if progress else nullcontext()
    with (
        mlflow_tracking.chain(store, name, config, seed) as chain,
        testbed_pool.shared_testbeds(),
        shown,
        chain.stage(name) as run,
    ):
        mlflow_tracking.log_sizes(store, chain.run, sizes)
        yield run, chain.run


def configured(store: Store, options: TaskOptions) -> tuple[Recipe, Sizes, str]:
    """The recipe of the options, its sizes, and the dataset of the home that it is applied to: by default the newest.

    Raises:
        ValueError: nothing has been ingested, or not this version.
    """
    testbed_pool.check_testbed(store, configure(options))
    versions = store.lake.dataset_versions()
    if not versions:
        raise ValueError(
            "nothing has been ingested into this home, so there are no tables to work on; run `dreamshard ingest`"
        )
    if options.dataset is not None and options.dataset not in versions:
        raise ValueError(
            f"there is no dataset {options.dataset!r} in this home; choose one of {versions[-5:]}, or run `dreamshard ingest`"
        )
    dataset = options.dataset or versions[-1]
    config = configure(options, source=store.lake.dataset_source(dataset))
    batch_size = batch_size_of(store.lake.read_dataset(dataset))
    config = replace(config, workload=replace(config.workload, batch_size=batch_size))
    settled, sizes = settle(store, config, dataset, testbed_pool.check_testbed(store, config))
    return settled, sizes, dataset
