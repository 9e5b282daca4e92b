"""Prefect tasks that measure placers on held-out tasks: a training against the champion, or any versions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dreamshard.plan import read_plan
from dreamshard.recipes import EvaluationConfig
from dreamshard.rivals import MEASURING
from flows.decisions import contestants, heldout, rivals
from flows.decisions.rivals import RivalInputs
from flows.reports import mlflow_tracking, report_pages
from flows.runtime.content_keys import content_key
from flows.runtime.retries import measuring_task, retried_task
from flows.runtime.run_locks import training_lock
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks.measured_report import measure_and_report
from flows.tasks.rival_measurements import measuring_for_rnn
from storage.mlflow_store import champions, registry
from storage.run_records import checkpoints, report_store, training_effort
from storage.store import Store


@retried_task("find the champion")
def champion_to_beat(store: Store, training: str, iteration: int) -> str | None:
    """Champion of the training's topology; None if there is none, or if it is this very iteration of the training."""
    topology = training_effort.read_origin(store, training).topology
    version = champions.champion_of(store.settings, topology)
    if version is None:
        return None
    tags = registry.version_tags(store.settings, version)
    is_same = (tags.get("training"), tags.get("iteration")) == (training, str(iteration))
    return None if is_same else version


@measuring_task("evaluate placers")
def evaluate_placers(
    store: Store,
    training: str,
    iteration: int,
    dataset: str,
    tasks: str,
    config: EvaluationConfig,
    testbed: TestbedReference,
    rival: str | None,
    *,
    current: str | None = None,
) -> str:
    """Checkpoint, champion, rules of thumb on held-out tasks -> report, unless it exists; returns its key.

    Args:
        iteration: iteration of the training whose placer is the candidate.
        rival: version of the champion in use; None where there is none.
        current: path of the PLAN.json in use for a fixed model; None if it is not to be measured.

    Raises:
        ValueError: there is no such plan, or it is not one of this model.
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    plan = None if current is None else read_plan(current)
    in_use = [] if plan is None else [plan.to_json()]
    key = content_key(training, iteration, dataset, tasks, config, testbed, rival, *in_use)
    with training_lock(store, training):
        if not report_store.path(store.evaluations, key).is_file():
            candidate = checkpoints.placer(store, training, iteration, config.budget_ms)
            champion, unusable = contestants.champion_placer(store, rival)
            inputs = RivalInputs()
            if config.rivals:
                inputs = RivalInputs(
                    train_tasks=store.lake.read_tasks(dataset, "train", tasks),
                    measured=rivals.measured_for_training(store, training),
                    may_leave_out=True,
                )
            with _learning(store, testbed, tasks, inputs, learns=config.rivals) as learning:
                placers = contestants.of_training(candidate, champion, rival, learning, testbed.seed)
            report = measure_and_report(
                store,
                key,
                placers,
                dataset,
                tasks,
                config,
                testbed,
                training=training,
                iteration=iteration,
                rival=rival,
                rival_unusable=unusable,
                caveat=heldout.bias_caveat(store, rival, store.lake.read_tasks(dataset, "test", tasks)),
                current=plan,
                trainings=heldout.trainings_behind(store, training),
            )
            report_store.save(store.evaluations, report)
    report_store.mark_newest(store, training, key)
    return key


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
    with _learning(store, testbed, tasks, inputs, learns=MEASURING in names) as learning:
        placers = contestants.of_versions(store, names, learning, testbed.seed)
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


@contextmanager
def _learning(
    store: Store, testbed: TestbedReference, tasks: str, inputs: RivalInputs, *, learns: bool
) -> Iterator[RivalInputs]:
    """The inputs, with the testbed to measure on if a rival learns by that."""
    if not learns:
        yield inputs
        return
    with measuring_for_rnn(store, testbed, tasks, inputs.measurements) as measure:
        yield replace(inputs, measure=measure)


@retried_task("show comparison")
def show_comparison(store: Store, run: str, comparison: str) -> Mapping[str, Any]:
    """Report -> MLflow (figures of each version, evaluation dataset, page) and an artifact; returns the flow's outcome."""
    report = report_store.load(store.comparisons, comparison)
    page = mlflow_tracking.log_comparison(store, run, report)
    report_pages.publish_comparison(report)
    return {
        "comparison": comparison,
        "testbed": report.hardware,
        "held_out": report_pages.heldout_sentence(report),
        "report": str(report_store.path(store.comparisons, comparison)),
        "page": page,
    }
