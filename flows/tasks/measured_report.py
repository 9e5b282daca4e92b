"""Places, measures and reports once: the pipeline behind the evaluation of a training and the comparison of versions."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from prefect import get_run_logger

from dreamshard.costs import CostSample
from dreamshard.evaluation import EvaluationRow, best_baseline, evaluate, placement_identity
from dreamshard.measured_on import MeasuredOn
from dreamshard.placement import Placement
from dreamshard.plan import Plan
from dreamshard.recipes import EvaluationConfig
from dreamshard.task_sets.fixed_model import is_fixed_model
from dreamshard.tasks import PlacementTask
from flows.decisions.contestants import Contestants, of_fixed_model
from flows.decisions.torchrec_planners import with_torchrec_planner
from flows.reports.evaluation_report import make_report
from flows.runtime.progress import publish_progress, report_progress
from flows.runtime.testbed_pool import TestbedReference, accelerator_of, in_round, measure
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting
from storage.run_records.report_store import EvaluationReport
from storage.store import Store

FEW_TASKS = 5
"""Below so many distinct held-out tasks of a pool the report warns."""


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
    heldout = store.lake.read_tasks(dataset, "test", tasks)
    contestants = with_torchrec_planner(contestants, heldout, accelerator_of(store, testbed))
    contestants, notes = _for_tasks(contestants, heldout, current, reference)
    model = heldout[0].name if is_fixed_model(heldout) else None
    rows, measured_on = _measured(store, key, contestants, heldout, config, testbed)
    store.lake.write_evaluation(
        rows,
        contestants.versions,
        key,
        dataset_version=dataset,
        testbed=testbed.kind,
        hardware=testbed.identity,
        candidates={contestants.candidate: (facts["training"], facts["iteration"])} if contestants.candidate else {},
    )
    report = make_report(
        key,
        rows,
        reference or best_baseline([row for row in rows if model in (None, row.task.name)]),
        contestants.predictors,
        known=_placements(store, trainings),
        model=model,
        dataset=dataset,
        tasks=tasks,
        testbed=testbed.kind,
        hardware=testbed.identity,
        versions=contestants.versions,
        caveat="; ".join(filter(None, [caveat, *notes])),
        measured_on=measured_on.to_json() if measured_on else None,
        **({"candidate": contestants.candidate} if contestants.candidate else {}),
        learnt_from=contestants.learnt_from,
        has_default_bandwidths=contestants.has_default_bandwidths,
        **facts,
    )
    if report.caveat:
        get_run_logger().warning("%s", report.caveat)
    if report.rival_unusable:
        get_run_logger().warning("champion version %s counts as beaten: %s", report.rival, report.rival_unusable)
    get_run_logger().info("measured %s on %s", ", ".join(contestants.placers), ", ".join(report.task_names))
    return report


def _for_tasks(
    contestants: Contestants, heldout: Sequence[PlacementTask], current: Plan | None, reference: str | None
) -> tuple[Contestants, list[str]]:
    """The contestants that can place these tasks, and reasons to doubt the comparison.

    Raises:
        ValueError: the plan in use is not one of these tasks' model.
    """
    notes = [*contestants.notes]
    if is_fixed_model(heldout):
        contestants, left_out = of_fixed_model(contestants, heldout, current, reference)
        return contestants, [*notes, left_out]
    if current is not None:
        raise ValueError(
            "the tasks are drawn from a pool, so there is no model that the current plan places; give --mode fixed"
        )
    if len(heldout) < FEW_TASKS:
        notes.append(f"only {len(heldout)} distinct held-out tasks could be drawn, too few for a firm conclusion")
    return contestants, notes


def _measured(
    store: Store,
    key: str,
    contestants: Contestants,
    heldout: Sequence[PlacementTask],
    config: EvaluationConfig,
    testbed: TestbedReference,
) -> tuple[list[EvaluationRow], MeasuredOn | None]:
    """Every placer's placements of all tasks, measured one by one and kept at once; and what they were measured on.

    A fixed model, the first task, is measured more often than its variants, and placed by more placers.
    """
    everyone = {**contestants.model_placers, **contestants.placers}
    parts = [(everyone, heldout, config.repeats)]
    if is_fixed_model(heldout):
        parts = [
            (everyone, heldout[:1], config.model_repeats),
            (dict(contestants.placers), heldout[1:], config.variant_repeats),
        ]
    total = sum(len(placers) * len(tasks) * repeats for placers, tasks, repeats in parts)
    conditions: list[MeasuredOn] = []
    first = next(iter(contestants.predictors.values()), None)

    def measured(task: PlacementTask, placement: Placement, number: int) -> CostSample:
        sample = measure(store, in_round(testbed, number), task, placement)
        keep(sample)
        conditions.append(MeasuredOn.of(sample))
        if len(conditions) < total:
            report_progress("evaluate", len(conditions), total, task.name)
        return sample

    rows: list[EvaluationRow] = []
    with collecting(store.lake, key, EVALUATION, testbed.dataset) as keep:
        for placers, tasks, repeats in parts:
            predict = None if first is None else first.predict
            rows += evaluate(placers, tasks, measured, predict=predict, repeats=repeats, seed=testbed.seed)
    publish_progress("evaluate", 1, 1, f"{len(everyone)} placers on {len(heldout)} held-out tasks")
    return [_with_own_prediction(row, contestants) for row in rows], conditions[0] if conditions else None


def _placements(store: Store, trainings: Collection[str]) -> set[str]:
    """Identities of all placements that trainings measured."""
    samples = [sample for training in trainings for sample in store.lake.read_cost_samples(run_key=training)]
    return {placement_identity(sample.task, sample.placement) for sample in samples}


def _with_own_prediction(row: EvaluationRow, contestants: Contestants) -> EvaluationRow:
    predictor = contestants.predictors.get(row.placer)
    if predictor is None:
        return row
    return replace(row, predicted_ms=float(predictor.predict(row.task, row.placement).overall_ms()))
