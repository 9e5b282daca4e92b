"""Compare versions, heuristics and TorchRec's planner, on tasks held out for all of them."""

from typing import Any

from flows.drawing import draw_heldout_tasks
from flows.evaluate import measure_and_report
from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import evaluation_report
from flows.reports.mlflow_tracking import log_comparison
from flows.rules import contestants, heldout
from flows.runtime import testbed_pool
from flows.runtime.identity import content_key
from flows.runtime.tasks import announce, retried_task
from flows.stages import running
from storage.mlflow_store.registry import Version
from storage.run_records import report_store
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store, open_store


@deployed
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = contestants.resolve(store, options.versions, model=options.model or "")
    versions = [version for version in who.values() if version is not None]
    config, dataset, taken = heldout.setting_of(store, versions)
    announce(taken)
    with running(store, "compare", config, options.seed) as run:
        bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
        training = Training(recipe=config, dataset=dataset, testbed=bench)
        other = heldout.other_hardware(versions, training.topology)
        tasks = draw_heldout_tasks(store, training, versions)
        key = compare_placers(store, who, tasks, bench)
        log_comparison(store, run, key)
    report = report_store.load(store, key)
    for sentence in filter(None, (other, report.caveat)):
        announce(sentence)
    return {
        "comparison": key,
        "held_out": evaluation_report.heldout_sentence(report),
        "report": str(report_store.path(store, key)),
        "page": run.address,
        **evaluation_report.outcome(report),
    }


@retried_task("compare placers")
def compare_placers(store: Store, names: dict[str, Version | None], tasks: str, testbed: TestbedReference) -> str:
    """Any placers on held-out tasks -> measured costs in the lake and a report, unless it exists; returns its key.

    Args:
        names: version of each placer, or None; see `contestants.resolve`. The first is the reference.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung each time.
    """
    who = [version.model_id if version else name for name, version in names.items()]  # the same in all registries
    key = content_key("compare", who, tasks, testbed)
    if not report_store.path(store, key).exists():
        versions = [version for version in names.values() if version is not None]
        spec = testbed_pool.capacity(store, testbed).spec
        _, unseen = heldout.split_by_training(store, testbed.dataset, versions)
        measure_and_report(
            store,
            key,
            tasks,
            contestants.of_entrants(store, names, spec, testbed.seed),
            testbed,
            reference=next(iter(names)),
            trainings={key for v in versions for key in heldout.trainings_behind(v.training, v.made_of)},
            unseen_tables=len(unseen),
        )
    return key
