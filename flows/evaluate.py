"""Compare placers on held-out tasks: a training's newest with heuristics and the champion, or any versions and placers."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

from dreamshard.costs import CostSample, DeviceCosts, MeasuredOn, feasible, is_simulated
from dreamshard.evaluation import (
    EvaluationRow,
    PairedComparison,
    best_baseline,
    evaluate as place_and_measure,
    mean_error,
    placement_identity,
    with_all_types,
)
from dreamshard.plan import CurrentPlan, Plan, read_plan
from dreamshard.search import DreamShardPlacer
from dreamshard.search.packing import RandomPlacer
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask, Placer, violation
from dreamshard.testbeds.rounds import Steadiness
from flows.forms.form import deployed
from flows.forms.options import CompareOptions, EvaluateOptions
from flows.reports.evaluation_report import (
    evaluation_metrics,
    heldout_sentence,
    make_report,
    outcome,
    page,
    placers_table,
    steadiness_words,
)
from flows.reports.pages import html_page, publish
from flows.rules.contestants import (
    Contestants,
    bias_caveat,
    of_entrants,
    of_training,
    other_hardware,
    resolve,
    setting_of,
    split_by_training,
)
from flows.rules.promotion import gain_text
from flows.runtime.run_locks import store_lock
from flows.runtime.tasks import announce, content_key, report_progress, retried_task
from flows.runtime.testbed_pool import capacity, freeing_gpus, measure, testbed_reference
from flows.stages import MODEL, draw_heldout_tasks, last_iteration, running, single_stage
from flows.train import reference_placement
from storage.lake.lake import EVALUATION
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, report_store, trainings
from storage.run_records.report_store import CANDIDATE, CURRENT_PLAN
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store, open_store

FEW_TASKS = 5
"""Below so many distinct held-out tasks of a pool the report warns."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Placers to measure on the same held-out tasks, and their report's facts.

    Attributes:
        key: of the report.
        tasks: key of the task sets.
        testbed: measures.
        reference: placer that gains are reported over; by default the best heuristic.
        training: of the candidate; None in a comparison of versions, as are the next two fields.
        iteration: of the training, after which the candidate was taken.
        rival: URI of the champion that the candidate has to beat.
        current: the current plan of a fixed model, measured too.
        fitted: trainings by key whose placements are not held out, so predictions of them prove nothing.
        unseen_tables: number of tables that no compared version was trained on; None in an evaluation of a training.
        caveat: reason to doubt the comparison.
    """

    key: str
    tasks: str
    contestants: Contestants
    testbed: TestbedReference
    reference: str | None = None
    training: str | None = None
    iteration: int | None = None
    rival: str | None = None
    current: Plan | None = None
    fitted: Mapping[str, Training] = field(default_factory=dict)
    unseen_tables: int | None = None
    caveat: str = ""


@deployed
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Newest checkpoint -> measured comparison on held-out tasks."""
    with single_stage("evaluate", options) as (store, run, training):
        last = last_iteration(store, training)
        key = evaluate_placers(store, training, last, current=options.current)
        log_evaluation(store, run, key)
    return {"evaluation": key, **outcome(report_store.load(store, key))}


def champion_to_beat(store: Store, key: str, iteration: int) -> Version | None:
    """Champion of the training's model and topology, or the one that it beat if it is this iteration; None without one."""
    version = registry.champion(store, trainings.read(store, key).registered_model)
    if version is None or (version.training, version.iteration) != (key, iteration):
        return version
    report = report_store.newest(store, key)
    return None if report is None or report.rival is None else registry.find(store, report.rival)


@retried_task("evaluate placers")
def evaluate_placers(store: Store, training: str, iteration: int, *, current: str | None = None) -> str:
    """Checkpoint, champion, heuristics on held-out tasks -> report, unless it exists; returns its key.

    Args:
        training: key of the training whose placer is the candidate.
        current: path of the current PLAN.json for a fixed model; None if it is not to be measured.

    Raises:
        ValueError: there is no such plan, or it is not one of this model; or the champion cannot be read, which proves
            nothing about it.
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung each time.
    """
    made_of, rival = trainings.read(store, training), champion_to_beat(store, training, iteration)
    testbed = made_of.testbed
    plan = current_plan(store, training, current)
    uri = None if rival is None else rival.uri
    key = content_key(training, iteration, uri, plan and plan.to_json())
    with store_lock(store, f"training-{training}"), freeing_gpus():
        if not report_store.path(store, key).is_file():
            candidate = checkpoints.placer(store, training, iteration)
            drawn = trainings.tasks_of(store, made_of, "test")
            spec = capacity(store, testbed).spec
            comparison = Comparison(
                key=key,
                tasks=made_of.tasks,
                contestants=of_training(store, candidate, rival, drawn, spec, testbed.seed),
                testbed=testbed,
                training=training,
                iteration=iteration,
                rival=uri,
                current=plan,
                fitted={training: made_of},
                caveat="" if made_of.is_fixed else bias_caveat(store, rival, drawn),
            )
            measure_and_report(store, comparison)
    report_store.mark_newest(store, training, key)
    return key


@retried_task("log evaluation")
def log_evaluation(store: Store, run: Run, evaluation: str) -> None:
    """An evaluation of a training on its run: figures, table, and the held-out tasks as an input."""
    report = report_store.load(store, evaluation)
    run.log_table(placers_table(report))
    steady = report.steadiness
    machine = {"machine_level": report.level, "machine_spread": steady.spread, "disturbed_rounds": steady.disturbed}
    run.log_metrics(evaluation_metrics(report) | machine)
    run.log_tasks(report.task_names, report.tasks)


def current_plan(store: Store, training: str, path: str | None) -> Plan | None:
    """The current plan, if one is named.

    Raises:
        ValueError: there is no such plan, it is not one of the training's model, devices and memory, or the training has
            no fixed model.
    """
    if path is None:
        return None
    plan, made_of = read_plan(path), trainings.read(store, training)
    if not made_of.is_fixed:
        raise ValueError(
            "the tasks are drawn from a pool, so there is no model that the current plan places; give --mode fixed"
        )
    task = with_all_types(trainings.tasks_of(store, made_of, "test")[0])
    if broken := violation(task, CurrentPlan(plan).place(task)):
        raise ValueError(f"{path} cannot be measured: {broken}; give a plan of this model for these devices")
    return plan


def measure_and_report(store: Store, asked: Comparison) -> None:
    """Held-out tasks x placers -> measured costs in the lake -> report in the store.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung.
        ValueError: the current plan is not one of these tasks' model.
    """
    lake, key, testbed, training, contestants = store.lake, asked.key, asked.testbed, asked.training, asked.contestants
    dataset, placers, candidate = testbed.dataset, contestants.placers, contestants.candidate
    drawn = [  # a version of another batch size predicts for this one
        replace(task, batch_size=testbed.batch_size) for task in lake.read_tasks(dataset, "test", asked.tasks)
    ]
    notes, model = [asked.caveat], MODEL if drawn[0].name == MODEL else None
    if asked.current is not None:
        placers = {CURRENT_PLAN: CurrentPlan(asked.current), **placers}
    if model is None and len(drawn) < FEW_TASKS:
        notes.append(f"only {len(drawn)} distinct held-out tasks could be drawn, too few for a firm conclusion")
    versions = {name: version.uri for name, version in contestants.versions.items()}
    optional = placers.keys() - contestants.predictors.keys() - versions.keys() - {candidate, asked.reference}
    steady_by = None
    if not is_simulated(testbed.identity):
        first = drawn[0]
        steady_by = reference_placement(store, training) if training else (first, RandomPlacer().place(first))
    rows, measured_on = measured_rows(store, key, placers, drawn, contestants.predictors, testbed, optional, steady_by)
    now = Steadiness.of(lake.read_rounds(key))
    then = Steadiness.of(lake.read_rounds(training) if training else [])
    level = now.level_ms / then.level_ms if now.level_ms and then.level_ms else None
    if noise := now.noise(level):
        notes.append(
            f"the machine was not steady, so ignore differences in measured ms below {noise:.0%} (intervals of savings "
            f"cover noise): {steadiness_words(now, level)}"
        )
    measured = {(row.placer, row.task.name) for row in rows}
    if absent := {name for name in placers for task in drawn if (name, task.name) not in measured}:
        notes.append(f"{', '.join(sorted(absent))} could not fit every task and were left out")
    origins: dict[str, dict[str, Any]] = {name: {"model_version": uri} for name, uri in versions.items()}
    if candidate:
        origins[candidate] = {"training": training, "iteration": asked.iteration}
    lake.write_evaluation(rows, origins, key, dataset_version=dataset, testbed=testbed.kind, hardware=testbed.identity)
    fits = [[*lake.read_cost_samples(key), *trainings.earlier_samples(store, of)] for key, of in asked.fitted.items()]
    report = make_report(
        rows,
        asked.reference or best_baseline(rows),
        contestants.predictors,
        known={placement_identity(sample.task, sample.placement) for sample in chain(*fits)},
        model=model,
        key=key,
        dataset=dataset,
        tasks=asked.tasks,
        training=training,
        iteration=asked.iteration,
        rival=asked.rival,
        unseen_tables=asked.unseen_tables,
        versions=versions,
        caveat="; ".join(filter(None, [*notes, *contestants.notes])),
        measured_on=measured_on,
        steadiness=now,
        level=level,
        candidate=candidate or CANDIDATE,
    )
    report_store.save(store, report)


def measured_rows(
    store: Store,
    key: str,
    placers: Mapping[str, Placer],
    tasks: Sequence[PlacementTask],
    predictors: Mapping[str, DreamShardPlacer],
    testbed: TestbedReference,
    optional: Collection[str] = (),
    reference: tuple[PlacementTask, Placement] | None = None,
) -> tuple[list[EvaluationRow], MeasuredOn]:
    """Every placer's placements, measured in rounds that are kept at once; and the setting of the measurements.

    Args:
        key: names the samples in the lake.
        predictors: predict the costs of their own placements, the first of all other placements too.
        optional: placers that are left out if they cannot fit a task.
        reference: placement that shows how steady the machine is.
    """
    order = [task.name for task in tasks]
    samples: list[CostSample] = []

    def measured(task: PlacementTask, placement: Placement, number: int, *, reference: int) -> CostSample:
        sample = replace(
            measure(store, testbed, task, placement), round=number, repeat=reference, is_reference=reference > 0
        )
        samples.append(sample)
        keep(sample)
        if not reference:
            report_progress("evaluate", order.index(task.name), len(order), f"tasks, {task.name}, round {number + 1}")
        return sample

    def predicted(name: str, task: PlacementTask, placement: Placement) -> DeviceCosts:
        return predictors.get(name, next(iter(predictors.values()))).predict(task, placement)

    with store.lake.collecting(key, EVALUATION, testbed.dataset) as keep:
        rows = place_and_measure(
            placers,
            tasks,
            measured,
            predict=predicted if predictors else None,
            seed=testbed.seed,
            optional=optional,
            reference=reference,
        )
    report_progress("evaluate", len(order), len(order), "tasks")
    return rows, MeasuredOn.of(samples[0])


@deployed
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = resolve(store, options.versions, model=options.model or "")
    versions = [version for version in who.values() if version is not None]
    config, dataset, taken = setting_of(store, versions)
    announce(taken)
    with running(store, "compare", config, options.seed) as run:
        bench = testbed_reference(store, config, dataset, options.seed)
        training = Training(recipe=config, dataset=dataset, testbed=bench)
        other = other_hardware(versions, training.topology)
        tasks = draw_heldout_tasks(store, training, versions)
        key = compare_placers(store, who, tasks, bench)
        log_comparison(store, run, key)
    report = report_store.load(store, key)
    pairs = pairwise(sorted(versions, key=lambda v: v.created))
    upgrades = "; ".join(filter(None, (upgrade_sentence(store, *pair) for pair in pairs)))
    for sentence in filter(None, (other, upgrades)):
        announce(sentence)
    return {
        **({"upgrades": upgrades} if upgrades else {}),
        "comparison": key,
        "held_out": heldout_sentence(report),
        "report": str(report_store.path(store, key)),
        "page": run.address,
        **outcome(report),
    }


def upgrade_sentence(store: Store, before: Version, after: Version) -> str:
    """How much other libraries changed the cost of the placements that were measured for both; empty without an upgrade."""
    of = [version.measured_on.versions if version.measured_on else {} for version in (before, after)]
    other = of[0].items() ^ of[1].items()
    changed = sorted({f"{name} {of[0].get(name, 'absent')} to {of[1].get(name, 'absent')}" for name, _ in other})
    if not changed or before.made_of.costs_setting != after.made_of.costs_setting:
        return ""
    what = f"libraries changed from {before} to {after} ({', '.join(changed)})"
    one, two = (_measured_costs(store, version) for version in (before, after))
    ratios = [math.log(one[placement] / two[placement]) for placement in one.keys() & two.keys()]
    if len(ratios) < 2:
        return f"{what}, but no placement was measured with both; `dreamshard run --full` measures again"
    saved = PairedComparison.of(fmean(ratios), mean_error(ratios)[0], num_tasks=len(ratios))
    return f"{what}, which saves {gain_text(saved)} of the cost of the same {len(ratios)} placements"


def _measured_costs(store: Store, version: Version) -> dict[Any, float]:
    """Costs of all placements that a version's training and evaluation measured."""
    keys = (version.training, version.tags.get("evaluation", version.training))
    samples = feasible(sample for key in keys for sample in store.lake.read_cost_samples(key))
    return {(placement_identity(s.task, s.placement), *s.task.tables.rows.tolist()): s.overall_ms for s in samples}


@retried_task("compare placers")
def compare_placers(store: Store, names: dict[str, Version | None], tasks: str, testbed: TestbedReference) -> str:
    """Any placers on held-out tasks -> measured costs in the lake and a report, unless it exists; returns its key.

    Args:
        names: version of each placer, or None; see `resolve`. The first is the reference.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung each time.
    """
    who = [version.model_id if version else name for name, version in names.items()]  # the same in all registries
    key = content_key("compare", who, tasks, testbed)
    if not report_store.path(store, key).exists():
        versions = [version for version in names.values() if version is not None]
        spec = capacity(store, testbed).spec
        _, unseen = split_by_training(store, testbed.dataset, versions)
        comparison = Comparison(
            key=key,
            tasks=tasks,
            contestants=of_entrants(store, names, spec, testbed.seed),
            testbed=testbed,
            reference=next(iter(names)),
            fitted={v.training: v.made_of for v in versions},
            unseen_tables=len(unseen),
        )
        measure_and_report(store, comparison)
    return key


@retried_task("show comparison")
def log_comparison(store: Store, run: Run, comparison: str) -> None:
    """A comparison: page, artifact and table on its run, which its versions name."""
    report = report_store.load(store, comparison)
    sentence = heldout_sentence(report)
    shown = page(report, sentence, {})
    run.log_table(placers_table(report))
    run.tracking.log_text(run.id, html_page(shown), "comparison.html")
    run.log_tasks(report.task_names, report.tasks)
    for uri in report.versions.values():
        registry.tag(store, uri, {"comparison": report.key})
    publish(shown, "dreamshard-comparison", sentence)
