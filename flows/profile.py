"""One measuring step of Algorithm 1 on its own: what the next training iteration will be fitted to."""

from typing import Any

from prefect import flow

from flows.forms.fields import (
    Dataset,
    Device,
    MemoryGb,
    NumDevices,
    RecipeName,
    Seconds,
    Seed,
    TablesPerTask,
    TestbedName,
    configure,
)
from flows.forms.schema import form
from flows.reports import tracking
from flows.runtime import locks, testbed_pool
from flows.tasks import shard_profiling
from flows.tasks import training as steps
from flows.tasks.stage_inputs import inputs
from storage.run_records import checkpoints
from storage.store import open_store


@form
@flow(name="profile", persist_result=True, result_serializer="json")
def profile(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
    seconds: Seconds = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Policy of the last checkpoint -> placements -> cost samples in the lake; or costs of shards, by the recipe."""
    config = configure(recipe, testbed=testbed)
    if config.collection is not None:
        return shard_profiling.profile_shards(config, seed, seconds, device)
    given = inputs(
        recipe,
        seed,
        testbed,
        dataset,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
    )
    with tracking.chain("profile", given.config, seed) as chain, testbed_pool.testbeds(), chain.stage("profile") as run:
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        with locks.of_training(steps.training_key(given.dataset, given.tasks, given.start, bench)):
            training = steps.start_training(given.dataset, given.tasks, given.start, bench)
            iteration = (checkpoints.last_iteration(open_store(), training) or 0) + 1
            figures = steps.measure_placements(training, iteration, given.dataset, given.tasks, bench)
        tracking.log_iteration(run, iteration, figures)
    return {"training": training, "iteration": iteration, "testbed": bench.identity} | figures
