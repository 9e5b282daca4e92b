"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from dreamshard.recipes import EvaluationConfig
from flows.drawing import draw_heldout_tasks
from flows.evaluate import measure_and_report, subject_of
from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import evaluation_report, mlflow_tracking
from flows.reports.pages import publish
from flows.rules import comparison, contestants, heldout
from flows.runtime import testbed_pool
from flows.runtime.identity import content_key
from flows.runtime.progress import announce
from flows.runtime.retries import retried_task
from flows.stages import running
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import report_store
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store, open_store


@deployed
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = contestants.resolve(store, options.versions, with_rivals=options.rivals, model=options.model or "")
    versions = [version for version in who.values() if version is not None]
    config, dataset, taken = comparison.setting_of(store, versions)
    announce(taken)
    with running(store, "compare", config, options.seed) as run:
        bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
        training = Training(recipe=config, dataset=dataset, testbed=bench)
        other = comparison.other_hardware(versions, training.topology)
        tasks = draw_heldout_tasks(store, training, versions)
        measured = replace(config.evaluation, rivals=options.rivals)
        key = compare_placers(store, who, tasks, measured, bench)
        show_comparison(store, run, key)
    report = report_store.load(store, key)
    for sentence in filter(None, (other, report.caveat)):
        announce(sentence)
    return {
        "comparison": key,
        "held_out": evaluation_report.heldout_sentence(report),
        "report": str(report_store.path(store, key)),
        "page": run.address,
        "notes": "; ".join(filter(None, (taken, other, report.caveat))),
        **evaluation_report.outcome(report),
    }


@retried_task("compare placers")
def compare_placers(
    store: Store, names: dict[str, Version | None], tasks: str, config: EvaluationConfig, testbed: TestbedReference
) -> str:
    """Any placers on held-out tasks -> measured costs in the lake and a report, unless it exists; returns its key.

    Args:
        names: version of each placer, or None; see `contestants.resolve`. The first is the reference.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung each time.
    """
    who = [version.model_id if version else name for name, version in names.items()]  # the same in all registries
    key = content_key("compare", who, tasks, config, testbed)
    if not report_store.path(store, key).exists():
        versions = [version for version in names.values() if version is not None]
        spec = testbed_pool.capacity(store, testbed).spec
        _, unseen = heldout.split_by_training(store, testbed.dataset, versions)
        measure_and_report(
            store,
            subject_of(testbed, key, tasks, unseen_tables=len(unseen)),
            contestants.of_entrants(store, names, spec, testbed.seed, may_leave_out=config.rivals),
            config,
            testbed,
            reference=next(iter(names)),
            trainings={key for each in versions for key in heldout.trainings_behind(each.training, each.made_of)},
        )
    return key


@retried_task("show comparison")
def show_comparison(store: Store, run: Run, comparison: str) -> None:
    """Report -> MLflow (cost of each version, page) and an artifact."""
    report = report_store.load(store, comparison)
    sentence = evaluation_report.heldout_sentence(report)
    page = evaluation_report.page(report, sentence, {})
    mlflow_tracking.log_comparison(store, run, report, page)
    publish(page, "dreamshard-comparison", sentence)
