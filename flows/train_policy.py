"""One policy step of Algorithm 1 on its own: closes the iteration that `profile` and `train_cost` began."""

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
@flow(name="train-policy", persist_result=True, result_serializer="json")
def train_policy(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
) -> dict[str, Any]:
    """Cost network -> policy, without hardware; ends with the iteration's checkpoint."""
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
        tracking.chain("train-policy", given.config, seed) as chain,
        testbed_pool.testbeds(),
        chain.stage("train-policy") as run,
    ):
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        with going_on(given, bench) as (training, last):
            checkpoints.require(open_store(), training, "fitted", "dreamshard profile, then the flow train-cost")
            figures = steps.improve_policy(training, last + 1, given.dataset, given.tasks)
        tracking.log_iteration(run, last + 1, figures)
    return {"training": training, "iteration": last + 1} | figures
