"""Algorithm 1 to its end: measure, fit, improve, checkpoint; as often as the recipe says.

`profile.py`, `train_cost.py` and `train_policy.py` are the three steps of one iteration on their own.
"""

from typing import Any

from prefect import flow

from flows.decisions.warm_start import Start
from flows.forms.fields import (
    Dataset,
    MemoryGb,
    NumDevices,
    RecipeName,
    Seed,
    TablesPerTask,
    TestbedName,
    configure,
)
from flows.forms.schema import form
from flows.reports import tracking
from flows.runtime import locks, testbed_pool
from flows.runtime.progress import progress_artifact
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks import shard_profiling
from flows.tasks import training as steps
from flows.tasks.stage_inputs import inputs
from storage.run_records import checkpoints
from storage.run_records.checkpoints import iteration_name
from storage.store import open_store


def train_placer(run: str, dataset: str, tasks: str, start: Start, bench: TestbedReference) -> str:
    """All iterations that have no checkpoint yet; returns the training's key.

    The loop holds tasks, not flows: a task costs milliseconds, a flow more than a second.
    """
    with locks.of_training(steps.training_key(dataset, tasks, start, bench)):
        training = steps.start_training(dataset, tasks, start, bench)
        for iteration in range(1, start.config.iterations + 1):
            if not checkpoints.is_complete(open_store(), training, iteration):
                steps.measure_placements(training, iteration, dataset, tasks, bench)
                steps.fit_cost_network(training, iteration)
                steps.improve_policy(training, iteration, dataset, tasks)
            tracking.log_iteration(
                run, iteration, checkpoints.figures(open_store(), training, iteration_name(iteration))
            )
    tracking.log_savings(run, training)
    return training


@form
@flow(name="train", persist_result=True, result_serializer="json")
def train(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
) -> dict[str, Any]:
    """Cost samples -> cost network -> policy: all iterations that are left."""
    config = configure(recipe, testbed=testbed)
    if config.collection is not None:
        return shard_profiling.train_on_shards(config, seed)
    given = inputs(
        recipe,
        seed,
        testbed,
        dataset,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
    )
    with (
        tracking.chain("train", given.config, seed) as chain,
        testbed_pool.testbeds(),
        progress_artifact("train"),
        chain.stage("train") as run,
    ):
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        training = train_placer(run, given.dataset, given.tasks, given.start, bench)
    return {
        "training": training,
        "checkpoints": str(checkpoints.folder(open_store(), training)),
        "table": [
            {"iteration": step + 1} | figures
            for step, figures in enumerate(checkpoints.history(open_store(), training))
        ],
    }
