"""The newest placer of the home into the registry; champion if its evaluation says so."""

from typing import Any

from prefect import flow

from flows import evaluations, measuring, steps_promotion, tracking
from flows.home import inputs, started_training
from flows.parameters import Dataset, RecipeName, Seed, TestbedName, described


@flow(name="promote", persist_result=True, result_serializer="json")
@described
def promote(
    recipe: RecipeName = "default", seed: Seed = 0, testbed: TestbedName = None, dataset: Dataset = None
) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger."""
    given = inputs(recipe, seed, testbed, dataset)
    with tracking.chain("promote", given.config, seed) as chain, measuring.testbeds(), chain.stage("promote") as run:
        bench = measuring.reference(given.config, given.dataset, seed)
        training, _ = started_training(given, bench)
        figures = evaluations.newest(training)
        rival = steps_promotion.champion_to_beat(training)
        if rival != figures["rival"]:
            raise ValueError(
                f"the champion is now version {rival}, but the evaluation compared with {figures['rival']}; run "
                "`dreamshard evaluate` again, then promote"
            )
        version = steps_promotion.register(
            run, training, given.dataset, figures["key"], given.config.evaluation.budget_ms
        )
        return steps_promotion.promote(run, version, training, figures["key"])
