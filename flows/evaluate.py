"""The newest placer of the home against every rule of thumb and the champion, on held-out tasks."""

from dataclasses import replace
from typing import Any

from flows.forms.form import deployed
from flows.forms.options import EvaluateOptions
from flows.reports import mlflow_tracking, report_tables
from flows.runtime.progress import announce
from flows.tasks import evaluation
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints, report_store


@deployed("evaluate")
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Newest checkpoint -> measured comparison on held-out tasks."""
    store = open_for(options)
    with stage(store, "evaluate", options, progress="evaluate") as inputs:
        training, last = inputs.training, inputs.last_iteration()
        checkpoints.require_trained(training, last)
        rival = evaluation.champion_to_beat(store, training, last)
        config = replace(inputs.config.evaluation, rivals=options.rivals)
        key = evaluation.evaluate_placers(
            store, training, last, inputs.dataset, inputs.tasks, config, inputs.bench, rival, current=options.current
        )
        mlflow_tracking.log_evaluation(store, inputs.run, key)
    report = report_store.load(store.evaluations, key)
    table, title = report_tables.evaluation_table(report), report_tables.title(report)
    outcome = {"evaluation": key, "testbed": inputs.bench.identity, "title": title, "table": table}
    learnt = report_tables.learnt_sentence(report)
    if report.caveat:
        announce(report.caveat)
    said = {"learnt_from": learnt, "notes": report.caveat}
    return {**outcome, **{name: sentence for name, sentence in said.items() if sentence}}
