"""Measures every version on the fixed reference tasks of its topology, so that costs of versions are comparable.

The tasks are drawn once per topology, on the first training (`dreamshard.task_sets.reference`). Each version
costs two placements per task and round: its own and a rule of thumb's, interleaved, in one run of the testbed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd  # type: ignore[import-untyped]
from prefect import get_run_logger
from prefect.exceptions import CancelledRun

from dreamshard.costs import CostSample
from dreamshard.evaluation import EvaluationRow, evaluate, mean_overall_ms, prediction_figures
from dreamshard.files import json_digest
from dreamshard.placement import Placement
from dreamshard.recipes import MeasureConfig
from dreamshard.search import DreamShardPlacer
from dreamshard.search.baselines import GreedyPlacer
from dreamshard.task_sets.reference import RULE, reference_tasks, reference_workload
from dreamshard.tasks import PlacementTask
from flows.ingest import ingest_workload
from flows.runtime import testbed_pool
from flows.runtime.progress import announce
from flows.runtime.retries import measuring_task
from flows.runtime.run_locks import home_lock, registry_lock
from flows.runtime.testbed_pool import in_round, measure
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting
from storage.mlflow_store import registry, runs, versions
from storage.run_records import reference_sets
from storage.run_records.reference_sets import ReferenceSet
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store
from storage.version_names import in_words

COST = "reference_cost_ms"
"""Metric: mean cost of a version's placements of the reference tasks."""
RATIO = "reference_cost_ratio"
"""The same over the cost of the rule of thumb measured beside it, mean over the tasks: below 1 is better than the rule."""
RULE_COST = "reference_rule_ms"
"""Mean cost of the rule's placements, which never change: a change of it is one of the machine."""
ERROR = "reference_predicted_mape"
"""Mean relative error of the version's own predictions of these costs; only of a version that learnt costs of their batch."""
SET = "reference_set"
"""Tag of a version: key of the reference set."""
FAILURE = "reference_failure"
"""Tag of a version: why it could not be measured on its reference set."""

VERSION = "dreamshard"
"""The name of the version's placer among the rows in the lake."""

_ROUNDS = 2
_SPLIT = "reference"


def score_version(store: Store, run: str, version: str, made_of: Training, *, anew: bool = False) -> str:
    """Measure a version on the reference set of its topology, unless that is done.

    A version of a fixed model is left out: its own tasks say how good it is, and tasks of other tables would not.

    Call it when the version has been decided on: whatever goes wrong here costs it only this figure. The sentence is then a
    warning in the run's log and the version's tag `FAILURE`, which `dreamshard models` shows.

    Args:
        run: MLflow run of the chain.
        made_of: its training; a new set has its precision and optimizer, and tables and memory that follow the devices.
        anew: draw another set, once per chain; versions measured on the earlier one stay comparable with each other only.

    Returns:
        Why the version was not measured; empty if it was, or need not be.
    """
    if made_of.is_fixed:
        return ""
    try:
        _score(store, run, version, made_of, anew=anew)
    except CancelledRun:
        raise
    except Exception as error:  # noqa: BLE001 - a finished training must not fail for a figure
        sentence = (
            f"{in_words(version)} was not measured on reference tasks ({str(error) or type(error).__name__}), so it has no "
            "reference_cost_ms to compare with other versions; it is in use as decided, and later versions are tried again"
        )
        get_run_logger().warning("%s", sentence, exc_info=error)
        with registry_lock(store):
            registry.tag(store.settings, version, {FAILURE: sentence})
            versions.write_versions(store.settings)
        return sentence
    return ""


def _score(store: Store, run: str, version: str, made_of: Training, *, anew: bool) -> None:
    topology = str(made_of.topology)
    why = f"another run draws the reference tasks of {topology}"
    with home_lock(store, f"reference-{json_digest(topology)}", why):
        known = reference_sets.reference_sets(store, topology)
        is_due = not known or (anew and known[-1].asked_by != run)
        if is_due:
            announce(
                f"drawing fixed tasks of other tables, by which versions of {topology} are compared; once, minutes at most"
            )
        used = _drawn(store, run, topology, len(known) + 1, made_of) if is_due else known[-1]
    if registry.find(store.settings, version).tags.get(SET) != used.key:
        announce(measure_reference(store, version, used, made_of.testbed))


@measuring_task("measure reference tasks")
def measure_reference(store: Store, version: str, used: ReferenceSet, testbed: TestbedReference) -> str:
    """Placements of a version, and of the rule of thumb, on the reference tasks -> lake and MLflow; returns a sentence."""
    placer = registry.load_placer(version, store.settings)
    drawn = store.lake.read_tasks(used.dataset, _SPLIT, used.tasks)
    tasks = [replace(task, batch_size=used.batch_size) for task in drawn]  # whatever batch the version learnt costs of
    bench = replace(
        testbed, dataset=used.dataset, batch_size=used.batch_size, measure=used.measure, seed=used.number
    )  # a simulated testbed then draws the same noise for every version
    key = f"reference-{used.key}-{registry.find(store.settings, version).model_id}"
    testbed_pool.close_others(bench)
    with collecting(store.lake, key, EVALUATION, used.dataset) as keep:
        rows = evaluate(
            {VERSION: placer, RULE: GreedyPlacer(RULE)},
            tasks,
            _measuring(store, bench, keep),
            predict=placer.predict if isinstance(placer, DreamShardPlacer) else None,
            repeats=_ROUNDS,
            seed=used.number,
        )
    store.lake.write_evaluation(
        rows,
        {VERSION: {"model_version": version}},
        key,
        dataset_version=used.dataset,
        testbed=testbed.kind,
        hardware=testbed.identity,
        split=_SPLIT,
    )
    learnt = placer.cost_network.measured_on
    predicts = isinstance(placer, DreamShardPlacer)
    is_predicted = predicts and (learnt is None or learnt.setting.batch_size == used.batch_size)
    figures = reference_figures(rows, is_predicted=is_predicted)
    with registry_lock(store):
        log_figures(store, version, used, key, figures)
    batch = "; it predicts costs of another batch, so its error is not counted here"
    return (
        f"{used.name}: {in_words(version)} costs {figures[COST]:.4g} ms on {len(tasks)} fixed tasks of other tables, "
        f"{figures[RATIO]:.4g} times {RULE}, at batch {used.batch_size}{batch if predicts and not is_predicted else ''}"
    )


def log_figures(store: Store, version: str, used: ReferenceSet, key: str, figures: Mapping[str, float]) -> None:
    """Log the figures of a version on its run and its model; then its tags say so.

    Args:
        key: of the rows in the lake.
    """
    settings, found = store.settings, registry.find(store.settings, version)
    frame = pd.DataFrame({"task_set": [used.tasks], "dataset": [used.dataset]})
    source = str(store.lake.root / "evaluations")
    runs.log_input(settings, found.run, frame, "reference", source=source, name=used.name, digest=used.key)
    runs.log_metrics(settings, found.run, figures, model=found.model_id)
    runs.log_params(settings, found.run, {"reference_batch_size": used.batch_size})
    tags = {"reference_evaluation": key, "reference_dataset": used.dataset, FAILURE: None, SET: used.key}
    registry.tag(settings, version, tags)
    versions.write_versions(settings)


def reference_figures(rows: list[EvaluationRow], *, is_predicted: bool = True) -> dict[str, float]:
    """The metrics of the measured rows of a version and the rule of thumb.

    Args:
        is_predicted: the version predicts costs of steps of the batch that was measured; if not, its error is left out.
    """
    by_placer = {
        name: {row.task.name: row.overall_ms for row in rows if row.placer == name} for name in (VERSION, RULE)
    }
    rule = by_placer[RULE]
    error, _ = prediction_figures([row for row in rows if row.placer == VERSION])
    figures = {
        COST: mean_overall_ms(rows, VERSION),
        RATIO: fmean(cost / rule[task] for task, cost in by_placer[VERSION].items()),
        RULE_COST: mean_overall_ms(rows, RULE),
    }
    return figures | ({ERROR: error} if is_predicted else {})


def _drawn(store: Store, run: str, topology: str, number: int, made_of: Training) -> ReferenceSet:
    """Another set for a topology: its tables are brought into the lake, its tasks drawn and kept."""
    tasks, capacity = made_of.recipe.tasks, testbed_pool.capacity(store, made_of.testbed)
    memory_bytes = capacity.memory_bytes or tasks.memory_bytes
    is_gpu = capacity.kind in ("gpu", "simulated")
    workload = reference_workload(tasks.num_devices, memory_bytes, number, is_gpu=is_gpu)
    dataset = ingest_workload(store, workload, f"reference set {number} of {topology}", newest=False).dataset
    pool = store.lake.read_dataset(dataset)
    drawn = reference_tasks(pool, replace(tasks, memory_bytes=memory_bytes), number)
    new = ReferenceSet(
        topology=topology,
        number=number,
        dataset=dataset,
        tasks=store.lake.write_tasks(drawn, dataset, _SPLIT, seed=number),
        batch_size=workload.batch_size,
        measure=MeasureConfig(timeout_s=made_of.recipe.measure.timeout_s),
        asked_by=run,
    )
    reference_sets.add(store, new)
    return new


def _measuring(
    store: Store, bench: TestbedReference, keep: Callable[[CostSample], None]
) -> Callable[[PlacementTask, Placement, int], CostSample]:
    def measured(task: PlacementTask, placement: Placement, number: int) -> CostSample:
        sample = measure(store, in_round(bench, number), task, placement)
        keep(sample)
        return sample

    return measured
