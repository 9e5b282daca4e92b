"""The page to read first: the whole chain, from tables to champion and plan.

Each stage is a file of this folder with its Prefect tasks; each task calls one library function, which computes.
After ingestion, stages pass the key of one record, `storage.run_records.trainings.Training`: recipe, dataset, tasks, testbed,
warm start.
"""

from typing import Any

from dreamshard.plan import read_plan
from flows.evaluate import current_plan, evaluate_placers, log_evaluation
from flows.forms.form import deployed
from flows.forms.options import RetrainOptions
from flows.ingest import ingest_workload, log_ingested
from flows.place import plan_model
from flows.promote import register_and_decide
from flows.rules.warm_start import opened
from flows.runtime.testbed_pool import check_testbed
from flows.stages import prepare, running, with_sizes
from flows.train import train_placer
from storage.run_records.trainings import named_model


@deployed
def retrain(options: RetrainOptions) -> dict[str, Any]:
    """Tables -> cost samples -> placer -> evaluation -> champion -> plan; from the champion on if only tables changed."""
    config, store = opened(options)
    if options.current is not None:
        read_plan(options.current)
    capacity = check_testbed(store, config)
    with running(store, "retrain", config, options.seed) as run:
        with run.stage("ingest") as part:
            keeps = capacity.kind != "simulated"
            ingested = ingest_workload(store, config.workload, named_model(config), lookups=keeps)
            log_ingested(part, ingested, config.workload.source)
            config = with_sizes(config, ingested.tables, capacity)
            training = prepare(store, config, ingested.dataset, options.seed, full=options.full)
            current_plan(store, training, options.current)
        with run.stage("train") as part:
            last = train_placer(store, part, training)
        with run.stage("evaluate") as part:
            evaluation = evaluate_placers(store, training, last, current=options.current)
            log_evaluation(store, part, evaluation)
        with run.stage("promote"):
            outcome = register_and_decide(store, run, training, evaluation)
        with run.stage("plan"):
            return outcome | {"plan": plan_model(store, training, options)}
