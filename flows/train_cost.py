"""One fitting step of Algorithm 1 on its own: the cost network learns from everything measured so far."""

from typing import Any

from prefect import flow

from flows.forms.fields import Dataset, MemoryGb, NumDevices, RecipeName, Seed, TablesPerTask, TestbedName
from flows.forms.schema import form
from flows.reports import tracking
from flows.runtime import testbed_pool
from flows.tasks import training as steps
from flows.tasks.stage_inputs import going_on, inputs
from storage.run_records import checkpoints
from storage.store import open_store


@form
@flow(name="train-cost", persist_result=True, result_serializer="json")
def train_cost(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
) -> dict[str, Any]:
    """Cost samples of `profile` -> cost network."""
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
        tracking.chain("train-cost", given.config, seed) as chain,
        testbed_pool.testbeds(),
        chain.stage("train-cost") as run,
    ):
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        with going_on(given, bench) as (training, last):
            checkpoints.require(open_store(), training, "measured", "dreamshard profile")
            figures = steps.fit_cost_network(training, last + 1)
        tracking.log_iteration(run, last + 1, figures)
    return {"training": training, "iteration": last + 1} | figures
