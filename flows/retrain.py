"""The page to read first: the whole chain, from tables to champion.

Each line of `retrain` is a Prefect task of `steps.py` or `steps_promotion.py`; what it computes is in the one library
function it names. The flows of single stages (`ingest.py`, `profile.py`, ...) are made of the same steps.
"""

from typing import Any

from prefect import flow

from flows import measuring, steps, steps_promotion, tracking
from flows.form import form
from flows.ingest import ingest_workload
from flows.parameters import (
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
from flows.progress import progress_artifact
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
    measuring.check(config)
    with tracking.chain("retrain", config, seed) as chain, measuring.testbeds(), progress_artifact():
        with chain.stage("ingest") as run:
            ingested = ingest_workload(config.workload)
            dataset = ingested.dataset
            tracking.log_ingested(run, ingested, config.workload.source)
            bench = measuring.reference(config, dataset, seed)
            start = steps.find_start(config, dataset, bench, full=full)
            tasks = steps.draw_tasks(dataset, config.tasks, seed, start.halves_of)
        with chain.stage("train") as run:
            training = train_placer(run, dataset, tasks, start, bench)
        with chain.stage("evaluate") as run:
            last = start.config.iterations
            rival = steps_promotion.champion_to_beat(training, last)
            report = steps_promotion.evaluated(training, last, dataset, tasks, config.evaluation, bench, rival)
            tracking.log_evaluation(run, report)
        with chain.stage("promote"):
            version = steps_promotion.register(chain.run, training, dataset, report, config.evaluation.budget_ms)
            return steps_promotion.promote(chain.run, version, training, report)
