"""Measures every version on the fixed reference tasks of its topology, so that costs of versions are comparable.

The tasks are drawn once per topology, on the first training (`flows.rules.reference_tasks`). Each version
costs two placements per task and round: its own and a rule of thumb's, interleaved, in one run of the testbed.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd  # type: ignore[import-untyped]
from prefect import get_run_logger
from prefect.exceptions import CancelledRun

from dreamshard.evaluation import EvaluationRow, mean_overall_ms, prediction_figures
from dreamshard.files import json_digest
from dreamshard.recipes import MeasureConfig
from dreamshard.search import DreamShardPlacer
from dreamshard.search.baselines import GreedyPlacer
from flows.evaluate import measured_rows
from flows.ingest import ingest_workload
from flows.rules.reference_tasks import RULE, reference_tasks, reference_workload
from flows.runtime import testbed_pool
from flows.runtime.progress import announce
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import registry_lock, store_lock
from storage.mlflow_store import registry, runs, versions
from storage.run_records import reference_sets
from storage.run_records.reference_sets import ReferenceSet
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store
from storage.version_names import in_words

COST = "reference_cost_ms"
"""Metric: mean cost of a version's placements of the reference tasks."""
RATIO = "reference_cost_ratio"
"""The same over the cost of the rule of thumb measured with it, mean over the tasks: below 1 is better than the rule."""
RULE_COST = "reference_rule_ms"
"""Mean cost of the rule's placements, which never change: a change of it is one of the machine."""
ERROR = "reference_predicted_mape"
"""Mean relative error of the version's predictions of its costs; only of a version that learned costs of their batch."""
SET = "reference_set"
"""Tag of a version: key of the reference set."""

VERSION = "dreamshard"
"""The name of the version's placer among the rows in the lake."""

_REPEATS = 2
_SPLIT = "reference"


def score_version(store: Store, version: str, made_of: Training) -> str:
    """Measure a version on the reference set of its topology, unless that is done.

    A version of a fixed model is left out: its own tasks say how good it is, and tasks of other tables would not.

    Call it when the version has been decided on: whatever goes wrong here costs it only this figure, until a run of the same
    training tries again.

    Args:
        made_of: its training; a new set has its precision and optimizer, and tables and memory that follow the devices.

    Returns:
        Why the version was not measured; empty if it was, or need not be.
    """
    if made_of.is_fixed:
        return ""
    try:
        with store_lock(store, f"reference-{json_digest(str(made_of.topology))}"):
            used = reference_sets.find(store, str(made_of.topology)) or _drawn(store, made_of)
        if registry.find(store, version).tags.get(SET) != used.key:
            announce(measure_reference(store, version, used, made_of.testbed))
    except CancelledRun:
        raise
    except Exception as error:  # noqa: BLE001 - a finished training must not fail for a figure
        sentence = f"{in_words(version)} was not measured on reference tasks ({str(error) or type(error).__name__})"
        get_run_logger().warning("%s", sentence, exc_info=error)
        return sentence
    return ""


@retried_task("measure reference tasks")
def measure_reference(store: Store, version: str, used: ReferenceSet, testbed: TestbedReference) -> str:
    """Placements of a version, and of the rule of thumb, on the reference tasks -> lake and MLflow; returns a sentence."""
    placer = registry.load_placer(version, store)
    drawn = store.lake.read_tasks(used.dataset, _SPLIT, used.tasks)
    tasks = [replace(task, batch_size=used.batch_size) for task in drawn]  # whatever batch the version learned costs of
    bench = replace(
        testbed, dataset=used.dataset, batch_size=used.batch_size, measure=used.measure, seed=1
    )  # a simulated testbed then draws the same noise for every version
    key = f"reference-{used.key}-{registry.find(store, version).model_id}"
    predictors = {VERSION: placer} if isinstance(placer, DreamShardPlacer) else {}
    parts = [({VERSION: placer, RULE: GreedyPlacer(RULE)}, tasks, _REPEATS)]
    rows, _ = measured_rows(store, key, parts, predictors, bench, progress="reference")
    store.lake.write_evaluation(
        rows,
        {VERSION: {"model_version": version}},
        key,
        dataset_version=used.dataset,
        testbed=testbed.kind,
        hardware=testbed.identity,
        split=_SPLIT,
    )
    learned = placer.cost_network.measured_on
    is_predicted = bool(predictors) and (learned is None or learned.batch_size == used.batch_size)
    figures = reference_figures(rows, is_predicted=is_predicted)
    with registry_lock(store):
        log_figures(store, version, used, key, figures)
    return (
        f"{used.name}: {in_words(version)} costs {figures[COST]:.4g} ms on {len(tasks)} fixed tasks of other tables, "
        f"{figures[RATIO]:.4g} times {RULE}, at batch {used.batch_size}"
    )


def log_figures(store: Store, version: str, used: ReferenceSet, key: str, figures: Mapping[str, float]) -> None:
    """Log the figures of a version on its run and its model; then its tags say so.

    Args:
        key: of the rows in the lake.
    """
    found = registry.find(store, version)
    frame = pd.DataFrame({"task_set": [used.tasks], "dataset": [used.dataset]})
    source = str(store.lake.root / "evaluations")
    runs.log_input(store, found.run, frame, "reference", source=source, name=used.name, digest=used.key)
    runs.log_metrics(store, found.run, figures, model=found.model_id)
    runs.log_params(store, found.run, {"reference_batch_size": used.batch_size})
    registry.tag(store, version, {"reference_evaluation": key, "reference_dataset": used.dataset, SET: used.key})
    versions.write_versions(store)


def reference_figures(rows: list[EvaluationRow], *, is_predicted: bool = True) -> dict[str, float]:
    """The metrics of the measured rows of a version and the rule of thumb.

    Args:
        is_predicted: the version predicts costs of steps of the batch that was measured; if not, its error is left out.
    """
    own, rule = ({row.task.name: row.overall_ms for row in rows if row.placer == name} for name in (VERSION, RULE))
    error, _ = prediction_figures([row for row in rows if row.placer == VERSION])
    figures = {
        COST: mean_overall_ms(rows, VERSION),
        RATIO: fmean(cost / rule[task] for task, cost in own.items()),
        RULE_COST: mean_overall_ms(rows, RULE),
    }
    return figures | ({ERROR: error} if is_predicted else {})


def _drawn(store: Store, made_of: Training) -> ReferenceSet:
    """The set of a topology: its tables are brought into the lake, its tasks drawn and kept."""
    announce(f"drawing fixed tasks of other tables, by which versions of {made_of.topology} are compared; once")
    tasks, capacity = made_of.recipe.tasks, testbed_pool.capacity(store, made_of.testbed)
    memory_bytes = capacity.memory_bytes or tasks.memory_bytes
    is_simulated = capacity.kind == "simulated"
    workload = reference_workload(tasks.num_devices, memory_bytes, is_gpu=is_simulated or capacity.kind == "gpu")
    name = f"reference set of {made_of.topology}"
    dataset = ingest_workload(store, workload, name, newest=False, lookups=not is_simulated).dataset
    drawn = reference_tasks(store.lake.read_dataset(dataset), replace(tasks, memory_bytes=memory_bytes))
    new = ReferenceSet(
        topology=str(made_of.topology),
        dataset=dataset,
        tasks=store.lake.write_tasks(drawn, dataset, _SPLIT),
        batch_size=workload.batch_size,
        measure=MeasureConfig(timeout_s=made_of.recipe.measure.timeout_s),
    )
    reference_sets.keep(store, new)
    return new
