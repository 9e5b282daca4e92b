"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from dreamshard.recipes import EvaluationConfig
from dreamshard.rivals import MEASURING
from flows.decisions import comparison, contestants, heldout, rivals
from flows.decisions.rivals import RivalInputs
from flows.drawing import draw_heldout_tasks
from flows.evaluate import learning, measure_and_report, notes_on
from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import mlflow_tracking, report_pages, report_tables
from flows.runtime import testbed_pool
from flows.runtime.content_keys import content_key
from flows.runtime.progress import announce
from flows.runtime.retries import measuring_task, retried_task
from flows.stages import configured, running
from storage.mlflow_store.topology import Topology
from storage.run_records import report_store
from storage.run_records.trainings import TestbedReference, setting_of
from storage.store import Store, open_store


@deployed
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = contestants.resolve(store, options.versions, with_rivals=options.rivals)
    versions = [version for version in who.values() if version is not None]
    options, taken = comparison.with_sizes_of_versions(store, options, versions)
    if taken:
        announce(taken)
    config, dataset = configured(store, options)
    with running(store, "compare", config, options.seed, progress="evaluate") as (_, parent):
        bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
        other = comparison.other_hardware(store, versions, Topology.of_setting(setting_of(config, bench)))
        if other:
            announce(other)
        tasks = draw_heldout_tasks(store, dataset, config.tasks, options.seed, versions)
        measured = replace(config.evaluation, rivals=options.rivals)
        key = compare_placers(store, who, dataset, tasks, measured, bench)
        page = show_comparison(store, parent, key)
    report = report_store.load(store.comparisons, key)
    said = notes_on(report)
    return {
        "comparison": key,
        "testbed": report.hardware,
        "held_out": report_pages.heldout_sentence(report),
        "report": str(report_store.path(store.comparisons, key)),
        "page": page,
        **said,
        "notes": "; ".join(filter(None, (taken, other, said.get("notes")))),
        "title": report_tables.title(report),
        "table": report_tables.comparison_table(report),
    }


@measuring_task("compare placers")
def compare_placers(
    store: Store,
    names: dict[str, str | None],
    dataset: str,
    tasks: str,
    config: EvaluationConfig,
    testbed: TestbedReference,
) -> str:
    """Any placers on held-out tasks -> measured costs in the lake and a report, unless it exists; returns its key.

    Args:
        names: version of each placer, or None; see `contestants.resolve`. The first is the reference.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    key = content_key("compare", contestants.identities(store, names), dataset, tasks, config, testbed)
    if report_store.path(store.comparisons, key).exists():
        return key
    inputs = RivalInputs(may_leave_out=config.rivals)
    if MEASURING in names:
        first = next(version for version in names.values() if version is not None)
        inputs = replace(
            inputs,
            train_tasks=store.lake.read_tasks(dataset, "train", tasks),
            measured=rivals.measured_for_version(store, first),
        )
    with learning(store, testbed, tasks, inputs, learns=MEASURING in names) as ready:
        placers = contestants.of_versions(store, names, ready, testbed.seed)
    _, unseen = heldout.split_by_training(store, dataset, list(placers.versions.values()))
    report = measure_and_report(
        store,
        key,
        placers,
        dataset,
        tasks,
        config,
        testbed,
        reference=next(iter(names)),
        unseen_tables=len(unseen),
        trainings=heldout.trainings_of_versions(store, list(placers.versions.values())),
    )
    report_store.save(store.comparisons, report)
    return key


@retried_task("show comparison")
def show_comparison(store: Store, run: str, comparison: str) -> str:
    """Report -> MLflow (figures of each version, evaluation dataset, page) and an artifact; returns its address."""
    report = report_store.load(store.comparisons, comparison)
    page = mlflow_tracking.log_comparison(store, run, report)
    report_pages.publish_comparison(report)
    return page
