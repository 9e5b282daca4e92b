"""The newest placer of the home into the registry, champion if its evaluation says so; or any version, by hand."""

from typing import Any

from prefect import flow

from flows.forms.fields import (
    Dataset,
    MemoryGb,
    NumDevices,
    Reason,
    RecipeName,
    Seed,
    TablesPerTask,
    TestbedName,
    Version,
)
from flows.forms.schema import form
from flows.reports import evaluations, tracking
from flows.runtime import testbed_pool
from flows.tasks import evaluation, promotion
from flows.tasks.stage_inputs import inputs, started_training
from storage.run_records import checkpoints


@form
@flow(name="promote", persist_result=True, result_serializer="json")
def promote(
    version: Version = None,
    reason: Reason = None,
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger; or the version named -> champion."""
    if version:
        return promotion.make_champion(version, reason or "")
    given = inputs(
        recipe,
        seed,
        testbed,
        dataset,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
    )
    with tracking.chain("promote", given.config, seed) as chain, testbed_pool.testbeds(), chain.stage("promote"):
        bench = testbed_pool.reference(given.config, given.dataset, seed)
        training, last = started_training(given, bench)
        checkpoints.require_trained(training, last)
        figures = evaluations.newest(training)
        evaluations.require_of(figures, last)
        rival = evaluation.champion_to_beat(training, last)
        if rival != figures["rival"]:
            raise ValueError(
                f"the champion is now version {rival}, but the evaluation compared with {figures['rival']}; run "
                "`dreamshard evaluate` again, then promote"
            )
        registered = promotion.register(
            chain.run, training, given.dataset, figures["key"], given.config.evaluation.budget_ms
        )
        return promotion.promote(chain.run, registered, training, figures["key"])
