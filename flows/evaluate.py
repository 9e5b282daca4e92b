"""The newest placer of the home against every rule of thumb and the champion, on held-out tasks."""

from typing import Any

from prefect import flow

from flows import evaluations, measuring, report, steps_promotion, tracking
from flows.home import inputs, started_training
from flows.parameters import Dataset, RecipeName, Seed, TestbedName, described
from flows.progress import progress_artifact


@flow(name="evaluate", persist_result=True, result_serializer="json")
@described
def evaluate(
    recipe: RecipeName = "default", seed: Seed = 0, testbed: TestbedName = None, dataset: Dataset = None
) -> dict[str, Any]:
    """Newest checkpoint -> measured comparison on held-out tasks."""
    given = inputs(recipe, seed, testbed, dataset)
    with (
        tracking.chain("evaluate", given.config, seed) as chain,
        measuring.testbeds(),
        progress_artifact("evaluate"),
        chain.stage("evaluate") as run,
    ):
        bench = measuring.reference(given.config, given.dataset, seed)
        training, last = started_training(given, bench)
        rival = steps_promotion.champion_to_beat(training)
        key = steps_promotion.evaluate_placers(
            training, last, given.dataset, given.tasks, given.config.evaluation, bench, rival
        )
        tracking.log_evaluation(run, key)
    return {"evaluation": key, "testbed": bench.identity, "table": report.summary_rows(evaluations.load(key))}
