"""Places, measures and reports once: the pipeline behind the evaluation of a training and the comparison of versions."""

from dataclasses import replace
from typing import Any

from prefect import get_run_logger

from dreamshard.costs import CostSample
from dreamshard.evaluation import EvaluationRow, best_baseline, evaluate
from dreamshard.placement import Placement
from dreamshard.recipes import EvaluationConfig
from dreamshard.tasks import PlacementTask
from flows.decisions.contestants import Contestants
from flows.reports.evaluation_report import make_report
from flows.runtime.progress import publish_progress, report_progress
from flows.runtime.testbed_pool import TestbedReference, measure, step_lock
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting
from storage.run_records.report_store import EvaluationReport
from storage.store import Store


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
    **facts: Any,
) -> EvaluationReport:
    """Held-out tasks x placers -> measured costs in the lake -> report; each measurement is on disk at once.

    Args:
        key: names the report, and its samples and rows in the lake.
        reference: placer that gains are reported over; by default the best rule of thumb.
        facts: further fields of the report.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung.
    """
    heldout = store.lake.read_tasks(dataset, "test", tasks)
    total, done = config.repeats * len(contestants.placers) * len(heldout), 0

    def measured(task: PlacementTask, placement: Placement) -> CostSample:
        nonlocal done
        sample = measure(store, testbed, task, placement)
        keep(sample)
        done += 1
        if done < total:
            report_progress("evaluate", done, total, task.name)
        return sample

    first = next(iter(contestants.predictors.values()))
    with step_lock(testbed), collecting(store.lake, key, EVALUATION, testbed.dataset) as keep:
        rows = evaluate(
            contestants.placers,
            heldout,
            measured,
            predict_ms=first.predict_overall_ms,
            repeats=config.repeats,
            seed=testbed.seed,
        )
    rows = [_with_own_prediction(row, contestants) for row in rows]
    versions, hardware = contestants.versions, testbed.identity
    store.lake.write_evaluation(rows, versions, key, dataset_version=dataset, testbed=testbed.kind, hardware=hardware)
    publish_progress("evaluate", 1, 1, f"{len(contestants.placers)} placers on {len(heldout)} held-out tasks")
    report = make_report(
        key,
        rows,
        reference or best_baseline(rows),
        contestants.predictors,
        dataset=dataset,
        tasks=tasks,
        testbed=testbed.kind,
        hardware=hardware,
        versions=versions,
        **facts,
    )
    if report.caveat:
        get_run_logger().warning("%s", report.caveat)
    if report.rival_unusable:
        get_run_logger().warning("champion version %s counts as beaten: %s", report.rival, report.rival_unusable)
    get_run_logger().info("measured %s on %s", ", ".join(contestants.placers), ", ".join(report.task_names))
    return report


def _with_own_prediction(row: EvaluationRow, contestants: Contestants) -> EvaluationRow:
    predictor = contestants.predictors.get(row.placer)
    if predictor is None:
        return row
    return replace(row, predicted_ms=predictor.predict_overall_ms(row.task, row.placement))
