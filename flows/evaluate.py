"""The newest placer of a training against every rule of thumb and the champion, on held-out tasks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect import get_run_logger

from dreamshard.costs import CostSample, MeasuredOn
from dreamshard.evaluation import EvaluationRow, best_baseline, placement_identity
from dreamshard.evaluation import evaluate as place_and_measure
from dreamshard.placement import Placement
from dreamshard.plan import Plan, read_plan
from dreamshard.recipes import EvaluationConfig
from dreamshard.task_sets.fixed_model import is_fixed_model
from dreamshard.tasks import PlacementTask
from flows.forms.form import deployed
from flows.forms.options import EvaluateOptions
from flows.reports import mlflow_tracking, report_tables
from flows.reports.evaluation_report import make_report
from flows.rules import contestants as chosen
from flows.rules import heldout
from flows.rules.contestants import Contestants
from flows.runtime.content_keys import content_key
from flows.runtime.progress import announce, report_progress
from flows.runtime.retries import measuring_task, retried_task
from flows.runtime.run_locks import training_lock
from flows.runtime.testbed_pool import capacity, in_round, measure
from flows.stages import last_iteration, open_for, stage
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.run_records import checkpoints, report_store, trainings
from storage.run_records.report_store import EvaluationReport
from storage.run_records.trainings import TestbedReference
from storage.store import Store

FEW_TASKS = 5
"""Below so many distinct held-out tasks of a pool the report warns."""


@deployed
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Newest checkpoint -> measured comparison on held-out tasks."""
    store = open_for(options)
    with stage(store, "evaluate", options, progress="evaluate") as (run, _, training):
        last = last_iteration(store, training)
        key = evaluate_placers(store, training, last, rivals_too=options.rivals, current=options.current)
        log_evaluation(store, run, key)
    report = report_store.load(store, key)
    if report.caveat:
        announce(report.caveat)
    return {
        "evaluation": key,
        "testbed": report.hardware,
        "title": report_tables.title(report),
        "table": report_tables.evaluation_table(report),
        "notes": report.caveat,
    }


@retried_task("log evaluation")
def log_evaluation(store: Store, run: str, evaluation: str) -> None:
    """An evaluation -> figures, plots and tables of its run in MLflow."""
    mlflow_tracking.log_evaluation(store, run, evaluation)


@retried_task("find the champion")
def champion_to_beat(store: Store, key: str, iteration: int) -> Version | None:
    """Champion of the training's topology; None if there is none, or if it is this very iteration of the training."""
    version = registry.champion(store.settings, trainings.read(store, key).topology)
    is_same = version is not None and (version.training, version.iteration) == (key, iteration)
    return None if is_same else version


@measuring_task("evaluate placers")
def evaluate_placers(
    store: Store, training: str, iteration: int, *, rivals_too: bool = False, current: str | None = None
) -> str:
    """Checkpoint, champion, rules of thumb on held-out tasks -> report, unless it exists; returns its key.

    Args:
        training: key of the training whose placer is the candidate.
        rivals_too: compare the published rivals as well.
        current: path of the PLAN.json in use for a fixed model; None if it is not to be measured.

    Raises:
        ValueError: there is no such plan, or it is not one of this model.
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    made_of, rival = trainings.read(store, training), champion_to_beat(store, training, iteration)
    testbed, config = made_of.testbed, replace(made_of.recipe.evaluation, rivals=rivals_too)
    plan = None if current is None else read_plan(current)
    uri = None if rival is None else rival.uri
    key = content_key(training, iteration, config, uri, *([] if plan is None else [plan.to_json()]))
    with training_lock(store, training):
        if not report_store.path(store, key).is_file():
            candidate = checkpoints.placer(store, training, iteration, config.budget_ms)
            # a champion that cannot be read is an error, which proves nothing about it
            champion = None if uri is None else registry.load_placer(uri, store.settings)
            report = measure_and_report(
                store,
                key,
                chosen.of_training(candidate, champion, rival, testbed.seed, rivals=rivals_too),
                made_of.dataset,
                made_of.tasks,
                config,
                testbed,
                training=training,
                iteration=iteration,
                rival=uri,
                caveat=heldout.bias_caveat(store, rival, store.lake.read_tasks(made_of.dataset, "test", made_of.tasks)),
                current=plan,
                trainings=heldout.trainings_behind(training, made_of),
            )
            report_store.save(store, report)
    report_store.mark_newest(store, training, key)
    return key


def measure_and_report(
    store: Store,
    key: str,
    contestants: Contestants,
    dataset: str,
    tasks: str,
    config: EvaluationConfig,
    testbed: TestbedReference,
    *,
    reference: str | None = None,
    current: Plan | None = None,
    trainings: Collection[str] = (),
    caveat: str = "",
    **facts: Any,
) -> EvaluationReport:
    """Held-out tasks x placers -> measured costs in the lake -> report; each measurement is on disk at once.

    Args:
        key: names the report, and its samples and rows in the lake.
        reference: placer that gains are reported over; by default the best rule of thumb.
        current: the plan in use of a fixed model, measured too.
        trainings: keys of trainings whose placements are not held out, so predictions of them prove nothing.
        caveat: reason to doubt the comparison.
        facts: further fields of the report.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung.
        ValueError: the plan in use is not one of these tasks' model.
    """
    drawn = store.lake.read_tasks(dataset, "test", tasks)
    contestants = chosen.with_torchrec_planner(contestants, drawn, capacity(store, testbed).spec)
    notes = [caveat]
    if is_fixed_model(drawn):
        contestants = chosen.of_fixed_model(contestants, drawn, current, reference)
    elif current is not None:
        raise ValueError(
            "the tasks are drawn from a pool, so there is no model that the current plan places; give --mode fixed"
        )
    elif len(drawn) < FEW_TASKS:
        notes.append(f"only {len(drawn)} distinct held-out tasks could be drawn, too few for a firm conclusion")
    model = drawn[0].name if is_fixed_model(drawn) else None
    versions = {name: version.uri for name, version in contestants.versions.items()}
    rows, measured_on = _measured(store, key, contestants, drawn, config, testbed)
    origins: dict[str, dict[str, Any]] = {name: {"model_version": uri} for name, uri in versions.items()}
    if contestants.candidate:
        origins[contestants.candidate] = {"training": facts["training"], "iteration": facts["iteration"]}
    store.lake.write_evaluation(
        rows,
        origins,
        key,
        dataset_version=dataset,
        testbed=testbed.kind,
        hardware=testbed.identity,
    )
    samples = [sample for training in trainings for sample in store.lake.read_cost_samples(run_key=training)]
    report = make_report(
        key,
        rows,
        reference or best_baseline([row for row in rows if model in (None, row.task.name)]),
        contestants.predictors,
        known={placement_identity(sample.task, sample.placement) for sample in samples},
        model=model,
        dataset=dataset,
        tasks=tasks,
        testbed=testbed.kind,
        hardware=testbed.identity,
        versions=versions,
        caveat="; ".join(filter(None, [*notes, *contestants.notes])),
        measured_on=measured_on.model_dump() if measured_on else None,
        **({"candidate": contestants.candidate} if contestants.candidate else {}),
        **facts,
    )
    get_run_logger().info("measured %s on %s", ", ".join(contestants.placers), ", ".join(report.task_names))
    return report


def _measured(
    store: Store,
    key: str,
    contestants: Contestants,
    drawn: Sequence[PlacementTask],
    config: EvaluationConfig,
    testbed: TestbedReference,
) -> tuple[list[EvaluationRow], MeasuredOn | None]:
    """Every placer's placements of all tasks, measured one by one and kept at once; and what they were measured on.

    A fixed model, the first task, is measured more often than its variants, and placed by more placers.
    """
    everyone = {**contestants.model_placers, **contestants.placers}
    parts: list[tuple[Mapping[str, Any], Sequence[PlacementTask], int]] = [(everyone, drawn, config.repeats)]
    if is_fixed_model(drawn):
        parts = [
            (everyone, drawn[:1], config.model_repeats),
            (contestants.placers, drawn[1:], config.variant_repeats),
        ]
    total = sum(len(placers) * len(tasks) * repeats for placers, tasks, repeats in parts)
    conditions: list[MeasuredOn] = []
    first = next(iter(contestants.predictors.values()), None)

    def measured(task: PlacementTask, placement: Placement, number: int) -> CostSample:
        sample = measure(store, in_round(testbed, number), task, placement)
        keep(sample)
        conditions.append(MeasuredOn.of(sample))
        report_progress("evaluate", len(conditions), total, f"placements, {task.name}")
        return sample

    rows: list[EvaluationRow] = []
    with collecting(store.lake, key, EVALUATION, testbed.dataset) as keep:
        for placers, tasks, repeats in parts:
            predict = None if first is None else first.predict
            rows += place_and_measure(placers, tasks, measured, predict=predict, repeats=repeats, seed=testbed.seed)
    return [_with_own_prediction(row, contestants) for row in rows], conditions[0] if conditions else None


def _with_own_prediction(row: EvaluationRow, contestants: Contestants) -> EvaluationRow:
    predictor = contestants.predictors.get(row.placer)
    if predictor is None:
        return row
    return replace(row, predicted_ms=float(predictor.predict(row.task, row.placement).overall_ms()))
