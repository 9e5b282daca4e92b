"""The page to read first: the whole chain, from tables to champion.

Each line of `retrain` is a Prefect task of `steps.py` or `steps_promotion.py`; what it computes is in the one library
function it names. The flows of single stages (`ingest.py`, `profile.py`, ...) are made of the same steps.
"""

from typing import Any

from prefect import flow

from flows.forms.fields import (
    Full,
    Iterations,
    MemoryGb,
    NumDevices,
    PlacementsPerIteration,
    RecipeName,
    Seed,
    Source,
    TablesPerTask,
    TestbedName,
    configure,
)
from flows.forms.schema import form
from flows.reports import tracking
from flows.runtime import testbed_pool
from flows.runtime.progress import progress_artifact
from flows.tasks import evaluation, promotion
from flows.tasks import training as steps
from flows.tasks.ingestion import ingest_workload
from flows.train import train_placer


@form
@flow(name="retrain", persist_result=True, result_serializer="json")
def retrain(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    source: Source = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
    iterations: Iterations = None,
    placements_per_iteration: PlacementsPerIteration = None,
    full: Full = False,
) -> dict[str, Any]:
    """Tables -> cost samples -> placer -> evaluation -> champion; from the champion on where only tables changed."""
    config = configure(
        recipe,
        testbed=testbed,
        source=source,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
        iterations=iterations,
        placements_per_iteration=placements_per_iteration,
    )
    testbed_pool.check(config)
    with tracking.chain("retrain", config, seed) as chain, testbed_pool.testbeds(), progress_artifact():
        with chain.stage("ingest") as run:
            ingested = ingest_workload(config.workload)
            dataset = ingested.dataset
            tracking.log_ingested(run, ingested, config.workload.source)
            bench = testbed_pool.reference(config, dataset, seed)
            start = steps.find_start(config, dataset, bench, full=full)
            tasks = steps.draw_tasks(dataset, config.tasks, seed, start.split_of)
        with chain.stage("train") as run:
            training = train_placer(run, dataset, tasks, start, bench)
        with chain.stage("evaluate") as run:
            last = start.config.iterations
            rival = evaluation.champion_to_beat(training, last)
            report = evaluation.evaluated(training, last, dataset, tasks, config.evaluation, bench, rival)
            tracking.log_evaluation(run, report)
        with chain.stage("promote"):
            version = promotion.register(chain.run, training, dataset, report, config.evaluation.budget_ms)
            return promotion.promote(chain.run, version, training, report)
