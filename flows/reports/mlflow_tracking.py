"""Logs of the flows in MLflow: evaluations and comparisons on their runs, and versions of the placer."""

from collections.abc import Mapping
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from dreamshard.costs import MeasuredOn
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from flows.reports import evaluation_report, pages
from flows.rules.dataset_diff import diff_datasets
from flows.runtime.tasks import retried_task
from storage.lake.ingested import Ingested
from storage.mlflow_store import LONGEST, registration, registry, runs
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, report_store, trainings
from storage.run_records.report_store import EvaluationReport
from storage.run_records.trainings import Training
from storage.store import Store

REPORT = "comparison_report.html"
"""The page on every version's run that shows the comparison by which it was decided on."""
CURVES = ("measured_cost_ms", "cost_loss", "policy_reward", "policy_entropy")
"""Metrics of each iteration on a version's run; the stage `train` below it has all."""
FACTS = {"source", "dataset_version", "hardware", "devices", "memory_gb", "batch_size", "recipe", "warm_from"}
"""Facts of a training that are parameters of its version's run."""
PREFECT_RUN = "prefect_run"
"""Tag of a run and a version: the address of the Prefect run that made it, or its id if it has no page."""


@retried_task("log tables")
def log_ingested(run: Run, ingested: Ingested, source: str) -> None:
    """The tables as an input of the run, whose digest is their dataset's version, and how many of them were new."""
    _log_tables(run, ingested.tables, source, ingested.dataset)
    run.log_params({"tables_new": ingested.new, "tables_reused": ingested.reused})


@retried_task("log evaluation")
def log_evaluation(store: Store, run: Run, evaluation: str) -> None:
    """An evaluation of a training on its run: figures, table, and the held-out tasks as an input."""
    report = report_store.load(store, evaluation)
    run.log_table(evaluation_report.placers_table(report))
    run.log_metrics(evaluation_report.evaluation_metrics(report))
    steady = report.steadiness
    run.log_metrics(
        {"machine_level": report.level, "machine_spread": steady.spread, "disturbed_rounds": steady.disturbed}
    )
    _log_tasks(run, report)


@retried_task("show comparison")
def log_comparison(store: Store, run: Run, comparison: str) -> None:
    """A comparison: page, artifact and table on its run, which its versions name."""
    report = report_store.load(store, comparison)
    sentence = evaluation_report.heldout_sentence(report)
    page = evaluation_report.page(report, sentence, {})
    run.log_table(evaluation_report.placers_table(report))
    run.tracking.log_text(run.id, pages.html_page(page), "comparison.html")
    _log_tasks(run, report)
    for uri in report.versions.values():
        registry.tag(store, uri, {"comparison": report.key})
    pages.publish(page, "dreamshard-comparison", sentence)


def register(store: Store, run: Run, report: EvaluationReport) -> Version:
    """Register the evaluated placer as the next version, unless that is done.

    MLflow's page that compares versions shows `run`, so the training's curves, what the version is made of, and the
    evaluation are logged there, all before there is a version.
    """
    training, iteration = str(report.training), int(report.iteration or 0)
    known = (v for v in registry.versions(store) if (v.training, v.iteration) == (training, iteration))
    version = next(known, None)
    if version is None:
        for step, figures in enumerate(checkpoints.history(store, training)[:iteration], start=1):
            run.log_metrics({name: figures.get(name) for name in CURVES}, step)
        made_of = trainings.read(store, training)
        placer = checkpoints.placer(store, training, iteration, made_of.recipe.evaluation.budget_ms)
        if isinstance(placer, DreamShardPlacer):  # AutoShard predicts forward and backward compute as one
            store.lake.write_estimates(placer, report.dataset, training, iteration)
        facts = _facts(store, made_of, placer.cost_network.measured_on, report)
        run.log_params(facts)
        run.log_table(evaluation_report.placers_table(report))
        _log_tasks(run, report)
        pool = store.lake.read_dataset(report.dataset)
        _log_tables(run, pool, made_of.source, report.dataset)
        uri = registration.register_placer(
            store,
            placer,
            run,
            made_of,
            metrics=evaluation_report.evaluation_metrics(report),
            step=iteration,
            tags={
                "training": training,
                "iteration": iteration,
                "evaluation": report.key,
                "dataset": report.dataset,
                "table_diff": facts["table_diff"],
            },
            pool=pool,
        )
        version = registry.find(store, uri)
    run.tracking.update_run(version.run, name=version.name)
    return version


def log_report(
    store: Store, version: Version, report: EvaluationReport, outcome: str, links: Mapping[str, str]
) -> None:
    """The report by which a version was decided on: a page on its run, and the description of both."""
    run = Run(store, version.run)
    run.tracking.log_text(run.id, pages.html_page(evaluation_report.page(report, outcome, links)), REPORT)
    links_of_mlflow = {
        "Comparison report": run.link(REPORT),
        "Version": f"#/models/{version.registered_model}/versions/{version.number}?{runs.MODEL_TRAINING}",
        **{name: link for name, link in links.items() if name == "Prefect run"},
    }
    about = evaluation_report.page(report, f"{version.name}; {outcome}", links_of_mlflow)
    run.tracking.set_tag(run.id, runs.DESCRIPTION, about[:LONGEST])
    registry.describe(store, version.uri, report=about)  # last: then all of it is there


def addresses(store: Store, run: Run, evaluation: str) -> dict[str, str]:
    """Addresses of the evaluation and the runs, for people."""
    prefect_run = run.data.tags.get(PREFECT_RUN, "")
    return {
        "evaluation": str(report_store.path(store, evaluation)),
        "MLflow run": run.address,
        **({"Prefect run": prefect_run} if prefect_run.startswith("http") else {}),
    }


def _facts(store: Store, made_of: Training, measured: MeasuredOn | None, report: EvaluationReport) -> dict[str, Any]:
    """Parameters of a version's run, which MLflow compares: what versions of a model differ in."""
    warm, tables = made_of.warm, store.lake.read_dataset(made_of.dataset)
    others = (v for v in registry.versions(store) if v.training != report.training)
    alike = (v for v in others if v.model == made_of.model and (not warm or v.uri == warm.version))
    before = next(alike, None)
    is_known = before is not None and store.lake.has_dataset(before.made_of.dataset)
    earlier = store.lake.read_dataset(before.made_of.dataset) if before and is_known else None
    return {
        **{name: value for name, value in made_of.facts.items() if name in FACTS and value is not None},
        "libraries": "" if measured is None else ", ".join(map(" ".join, measured.versions.items())),
        "tables": len(tables),
        "table_diff": diff_datasets(earlier, tables).label,
        "iterations": report.iteration,
    }


def _log_tables(run: Run, tables: Tables, source: str, dataset: str) -> None:
    columns = {name: getattr(tables, name).numpy() for name in ("rows", "dim", "pooling_factor")}
    run.log_input(pd.DataFrame({"name": tables.names, **columns}), name=source, digest=dataset)


def _log_tasks(run: Run, report: EvaluationReport) -> None:
    """The held-out tasks of a report, by whose digest runs on the same ones are found."""
    run.log_input(pd.DataFrame({"task": report.task_names}), name="tasks", digest=report.tasks, context="evaluation")
