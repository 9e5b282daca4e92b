"""The page to read first: the whole chain, from tables to champion.

Each line of `retrain` calls a Prefect task of `flows/tasks/`; what it computes is in the one library function it names.
The flows of single stages (`ingest.py`, `profile.py`, ...) are made of the same steps.
"""

from typing import Any

from dreamshard.sizing import with_batch_size
from flows.forms.configuration import configure
from flows.forms.form import deployed
from flows.forms.options import RetrainOptions
from flows.reports import mlflow_tracking
from flows.runtime import testbed_pool
from flows.runtime.progress import progress_artifact
from flows.tasks import evaluation, promotion, reference
from flows.tasks import training as steps
from flows.tasks.drawing import draw_tasks
from flows.tasks.ingestion import ingest_workload
from flows.tasks.sizing import settle
from flows.tasks.stage_inputs import open_for
from flows.train import train_placer


@deployed("retrain")
def retrain(options: RetrainOptions) -> dict[str, Any]:
    """Tables -> cost samples -> placer -> evaluation -> champion; from the champion on where only tables changed."""
    config, store = with_batch_size(configure(options)), open_for(options)
    capacity = testbed_pool.check_testbed(store, config)
    with (
        mlflow_tracking.chain(store, "retrain", config, options.seed) as chain,
        testbed_pool.shared_testbeds(),
        progress_artifact(),
    ):
        with chain.stage("ingest") as run:
            ingested = ingest_workload(store, config.workload)
            dataset = ingested.dataset
            mlflow_tracking.log_ingested(store, run, ingested, config.workload.source)
            config, sizes = settle(store, config, dataset, capacity)
            mlflow_tracking.log_sizes(store, chain.run, sizes)
            bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
            start = steps.find_start(store, config, dataset, bench, full=options.full)
            tasks = draw_tasks(store, dataset, config.tasks, options.seed, start.split_of)
        with chain.stage("train") as run:
            training = train_placer(store, run, dataset, tasks, start, bench)
        with chain.stage("evaluate") as run:
            last = start.config.iterations
            rival = evaluation.champion_to_beat(store, training, last)
            report = evaluation.evaluate_placers(
                store, training, last, dataset, tasks, config.evaluation, bench, rival, current=options.current
            )
            mlflow_tracking.log_evaluation(store, run, report)
        with chain.stage("promote"):
            version = promotion.register(store, chain.run, training, report, config.evaluation.budget_ms)
            outcome = promotion.promote(store, chain.run, version, training, report, tryout=options.no_promote)
            missing = reference.score_version(store, chain.run, version, config, bench, anew=options.new_reference)
            return promotion.with_note(outcome, missing)
