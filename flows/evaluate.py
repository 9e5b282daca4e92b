"""The newest placer of the home against every rule of thumb and the champion, on held-out tasks."""

from dataclasses import replace
from typing import Any

from prefect import flow

from flows.forms.fields import (
    Dataset,
    MemoryGb,
    NumDevices,
    Peers,
    RecipeName,
    Seed,
    TablesPerTask,
    TestbedName,
)
from flows.forms.schema import form
from flows.reports import evaluation_page, evaluations, tracking
from flows.runtime import testbed_pool
from flows.runtime.progress import progress_artifact
from flows.tasks import evaluation
from flows.tasks.stage_inputs import inputs, started_training
from storage.run_records import checkpoints


@form
@flow(name="evaluate", persist_result=True, result_serializer="json")
def evaluate(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
    peers: Peers = False,
) -> dict[str, Any]:
    """Newest checkpoint -> measured comparison on held-out tasks."""
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
        tracking.chain("evaluate", given.config, seed) as chain,
        testbed_pool.testbeds(),
        progress_artifact("evaluate"),
        chain.stage("evaluate") as run,
    ):
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        training, last = started_training(given, bench)
        checkpoints.require_trained(training, last)
        rival = evaluation.champion_to_beat(training, last)
        config = replace(given.config.evaluation, peers=peers)
        key = evaluation.evaluated(training, last, given.dataset, given.tasks, config, bench, rival)
        tracking.log_evaluation(run, key)
    return {"evaluation": key, "testbed": bench.identity, "table": evaluation_page.summary_rows(evaluations.load(key))}
