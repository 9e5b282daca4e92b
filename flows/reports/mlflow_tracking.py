"""Logs of the flows in MLflow: one parent run per chain, a child run per stage, and versions of the placer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from dreamshard.recipes import Recipe
from dreamshard.training.config import DEFAULT_ALGORITHM
from flows.reports import plots, report_pages, report_tables
from flows.reports.report_tables import markdown_table
from flows.rules.dataset_diff import diff_datasets
from flows.runtime.identity import source_revision
from storage.lake import catalog
from storage.lake.ingested import Ingested
from storage.lake.parquet_files import hive_folder
from storage.mlflow_store import registration, registry, runs
from storage.mlflow_store.registry import Version
from storage.run_records import checkpoints, report_store, trainings
from storage.run_records.report_store import EvaluationReport
from storage.run_records.trainings import Training
from storage.store import Store
from storage.version_names import number_of

REPORT = "comparison_report.html"
"""The page on every version's run that shows the comparison by which it was decided on."""
PREFECT_RUN = "prefect_run"
"""Tag of a run and a version: the address of the Prefect run that made it, or its id if it has no page."""


@dataclass(frozen=True)
class Chain:
    """An open parent run."""

    store: Store
    run: str

    @contextmanager
    def stage(self, name: str) -> Iterator[str]:
        """Open a child run for the block and yield its id; it is marked as failed if the block fails."""
        with runs.stage(self.store, self.run, name) as run:
            yield run
        catalog.write_catalog(self.store)


@contextmanager
def chain(store: Store, name: str, config: Recipe, seed: int) -> Iterator[Chain]:
    """Open the parent run of a flow, or reopen it if the same Prefect run was interrupted."""
    context, revision = FlowRunContext.get(), source_revision()
    flow_run = None if context is None else context.flow_run
    tags = {
        **{"recipe": config.name, "seed": str(seed), "commit": revision},
        "mlflow.source.git.commit": revision.removesuffix("-dirty"),
    }
    if flow_run is not None:
        tags |= {"prefect.flow_run": flow_run.name, "prefect.flow_run_id": str(flow_run.id)}
        tags[PREFECT_RUN] = url_for(flow_run) or str(flow_run.id)  # a server of this process alone has no pages
    algorithm = store.algorithm
    named = f"{name} {source_label(config.workload.source)}"
    with runs.chain(
        store,
        named if algorithm == DEFAULT_ALGORITHM else f"{algorithm}: {named}",
        key=None if flow_run is None else str(flow_run.id),
        tags=tags,
    ) as run:
        yield Chain(store, run)


def log_ingested(store: Store, run: str, ingested: Ingested, source: str) -> None:
    """The dataset version as an input of the run, and how many of its tables were new."""
    _log_tables(store, run, ingested.dataset, source)
    runs.log_params(store, run, {"tables_new": ingested.new, "tables_reused": ingested.reused})


def log_evaluation(store: Store, run: str, evaluation: str) -> None:
    """An evaluation of a training: figures, plots, its tasks as evaluation dataset, tables by placer and by task."""
    report = report_store.load(store, evaluation)
    _log_tasks(store, run, report)
    runs.log_metrics(store, run, report_tables.evaluation_metrics(report), tasks=report.tasks)
    for name, figure in plots.plots(report).items():
        runs.client(store).log_figure(run, figure, f"plots/{name}.png")
    runs.log_table(store, run, report_tables.placers_table(report))
    runs.log_table(store, run, report_tables.measured_rows(report), "evaluation_by_task")


def log_comparison(store: Store, run: str, report: EvaluationReport) -> str:
    """A comparison: page, tables and evaluation dataset on its run, figures and page on the run of every version.

    Returns:
        Address of the run for people.
    """
    page = report_pages.html_page(report_pages.comparison_page(report), "comparison")
    tracking = runs.client(store)
    _log_tasks(store, run, report)
    runs.log_table(store, run, report_tables.placers_table(report), "comparison")
    runs.log_table(store, run, report_tables.measured_rows(report), "evaluation_by_task")
    tracking.log_text(run, page, "comparison.html")
    for name, uri in report.versions.items():
        version = registry.find(store, uri)
        _log_figures(store, version, report, report_tables.comparison_metrics(report, name))
        tracking.log_text(version.run, page, f"comparisons/{report.key}.html")
        registry.tag(store, uri, {"comparison": report.key, "compared_tasks": report.tasks})
    return runs.run_address(store, run)


def register(store: Store, run: str, report: EvaluationReport, budget_ms: float | None) -> str:
    """Register the evaluated placer as the next version; `run` holds its curves and figures.

    MLflow's page that compares versions shows this run, so the training's curves, what the version is made of and its
    tables are logged here as well.
    """
    training, iteration = str(report.training), int(report.iteration or 0)
    *earlier, last = checkpoints.history(store, training)[:iteration]
    for step, figures in enumerate(earlier, start=1):
        runs.log_metrics(store, run, figures, step)
    made_of, placer = trainings.read(store, training), checkpoints.placer(store, training, iteration, budget_ms)
    measured = placer.cost_network.measured_on
    libraries = "" if measured is None else ", ".join(map(" ".join, measured.versions.items()))
    recipe = asdict(made_of.recipe)
    del recipe["derived"], recipe["sized_by_source"]  # the sizes themselves are there
    del recipe["training"]["iterations"]  # the facts have those that were really run
    own = {"recipe": recipe.pop("name"), "seed": made_of.testbed.seed, "tasks": report.tasks, "libraries": libraries}
    for logged in (own | facts(store, training, made_of, iteration) | trainings.effort(store, training), recipe):
        runs.log_params(store, run, logged)
    _log_tables(store, run, report.dataset, made_of.source)
    return registration.register_placer(
        store,
        placer,
        run,
        made_of,
        metrics=last,
        step=iteration,
        tags={"training": training, "iteration": iteration, "evaluation": report.key, "dataset": report.dataset},
        pool=store.lake.read_dataset(report.dataset),
    )


def complete(store: Store, version: Version, report: EvaluationReport) -> None:
    """Name the version and log the evaluation on its run, unless that is done: a run may have stopped before this.

    The champion that it was measured with gets its own cost on the same tasks, so that MLflow sets both side by side.
    """
    if "name" in version.tags:
        return
    _log_tasks(store, version.run, report)
    runs.log_table(store, version.run, report_tables.placers_table(report))
    _log_figures(store, version, report, report_tables.evaluation_metrics(report))
    runs.log_metrics(store, version.run, report_tables.gains_over_champion(report))
    for name, uri in report.versions.items():
        rival = registry.find(store, uri)
        _log_figures(store, rival, report, {"eval_overall_ms": report.placer(name).overall_ms})
    parameters = runs.client(store).get_run(version.run).data.params
    name = version_name(version.uri, version.made_of, parameters.get("table_diff", ""))
    runs.client(store).update_run(version.run, name=name)
    registry.tag(store, version.uri, {"name": name})


def log_report(store: Store, version: Version, report: EvaluationReport, page: str, decision: str) -> None:
    """The comparison report of a version: the decision and its table in the version's description, `page` on its run."""
    tracking, run = runs.client(store), version.run
    table, name = markdown_table(report_tables.placers_table(report)), version.tags.get("name", version.uri)
    links = {"Comparison report": runs.run_link(store, run, REPORT)}
    address = tracking.get_run(run).data.tags.get(PREFECT_RUN, "")
    if address.startswith("http"):
        links["Prefect run"] = address
    shown = " · ".join(f"[{name}]({link})" for name, link in links.items())
    note = f"\n\nNote: {report.caveat}." if report.caveat else ""
    about = f"{name}; {decision}\n\n{shown}\n\n{report_tables.title(report)}:\n\n{table}{note}"
    tracking.update_model_version(version.model, str(version.number), description=about[:5000])  # MLflow's limit
    own = f"#/models/{version.model}/versions/{version.number}?{runs.MODEL_TRAINING}"
    tracking.set_tag(run, runs.DESCRIPTION, f"{name}\n\n{shown} · [Version]({own})")
    tracking.log_text(run, report_pages.html_page(page, "comparison report"), REPORT)


def has_report(store: Store, version: Version) -> bool:
    """Whether `log_report` has finished for a version."""
    return any(file.path == REPORT for file in runs.client(store).list_artifacts(version.run))


def addresses(store: Store, run: str, evaluation: str, training: str) -> dict[str, str]:
    """Addresses of everything that a chain has written, for people."""
    prefect_run = runs.client(store).get_run(run).data.tags.get(PREFECT_RUN, "")
    return {
        "lake": str(store.lake_root),
        "catalog": str(store.catalog_path),
        "checkpoints": str(checkpoints.folder(store, training)),
        "evaluation": str(report_store.path(store, evaluation)),
        "MLflow run": runs.run_address(store, run),
        **({"Prefect run": prefect_run} if prefect_run.startswith("http") else {}),
    }


def source_label(source: str) -> str:
    """The last part of a path or address, or a bundled source's name: `tables.csv`."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def version_name(version: str, made_of: Training, table_diff: str) -> str:
    """A version in a few words: `v4 tables.csv +3 -2, warm from v3`."""
    start = f"warm from v{number_of(made_of.warm.version)}" if made_of.warm else "from nothing"
    return f"v{number_of(version)} {' '.join(filter(None, [source_label(made_of.source), table_diff]))}, {start}"


def facts(store: Store, key: str, made_of: Training, iterations: int) -> dict[str, Any]:
    """Parameters of a version's run besides the recipe's, which MLflow compares; empty if there is nothing to state.

    Args:
        key: of the training.
        iterations: that were really run.
    """
    warm, others = made_of.warm, (each for each in registry.versions(store) if each.training != key)
    alike = (each for each in others if (each.uri == warm.version if warm else each.made_of.source == made_of.source))
    before, tables = next(alike, None), store.lake.read_dataset(made_of.dataset)
    is_known = before is not None and store.lake.has_dataset(before.made_of.dataset)
    earlier = store.lake.read_dataset(before.made_of.dataset) if before and is_known else None
    return {
        "hardware": made_of.testbed.identity,
        "batch_size": made_of.testbed.batch_size,
        "dataset": made_of.dataset,
        "tables": len(tables),
        "table_diff": diff_datasets(earlier, tables).label,
        "table_diff_from": before.uri if before else "",
        "iterations": iterations,
        "warm_from": number_of(warm.version) if warm else "",
    }


def _log_tables(store: Store, run: str, dataset: str, source: str) -> None:
    """The tables of a dataset, as an input of a run; the input's digest is the dataset version."""
    tables, folder = store.lake.read_dataset(dataset), hive_folder(store.lake.root / "tables", dataset_version=dataset)
    columns = {name: getattr(tables, name).numpy() for name in ("rows", "dim", "pooling_factor")}
    frame = pd.DataFrame({"name": tables.names, **columns})
    runs.log_input(store, run, frame, "training", source=str(folder), name=source, digest=dataset)


def _log_tasks(store: Store, run: str, report: EvaluationReport) -> None:
    """The measured tasks of a report, as an input of a run; the input's digest is their key."""
    frame, name = pd.DataFrame(report_tables.measured_rows(report)), f"held-out tasks on {report.hardware}"
    source = str(store.lake.root / "evaluations")
    runs.log_input(store, run, frame, "evaluation", source=source, name=name, digest=report.tasks)


def _log_figures(store: Store, version: Version, report: EvaluationReport, figures: Mapping[str, float | None]) -> None:
    """Figures of a version on the tasks of a report, on its run and its model."""
    runs.log_metrics(store, version.run, figures, tasks=report.tasks, model=version.model_id)
