"""What the flows log in MLflow: one parent run per chain, a child run per stage, and versions of the placer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from dreamshard.files.text import markdown_table
from dreamshard.recipes import Recipe
from dreamshard.training.config import DEFAULT_ALGORITHM
from flows.reports import evaluation_plan, plots, report_pages, report_tables, version_facts
from flows.reports.html import html_page
from flows.runtime.source_revision import source_revision
from storage.lake import catalog
from storage.lake.ingested import Ingested
from storage.mlflow_store import datasets, registration, registry, runs
from storage.mlflow_store.topology import Topology
from storage.run_records import checkpoints, lineage, report_store, training_effort
from storage.run_records.report_store import EvaluationReport
from storage.store import Store

REPORT = "comparison_report"
"""Name of the page on every version's run that shows the comparison by which it was decided on."""
PREFECT_RUN = "prefect_run"
"""Tag of a run and a version: the address of the Prefect run that made it, or its id where it has no page."""


@dataclass(frozen=True)
class Chain:
    """An open parent run."""

    store: Store
    run: str

    @contextmanager
    def stage(self, name: str) -> Iterator[str]:
        """Open a child run for the block and yield its id; it is marked as failed if the block fails."""
        with runs.stage(self.store.settings, self.run, name) as run:
            yield run
        catalog.write_catalog(self.store.settings)


@contextmanager
def chain(store: Store, name: str, config: Recipe, seed: int) -> Iterator[Chain]:
    """Open the parent run of a flow, or reopen it if the same Prefect run was interrupted."""
    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    key = None if flow_run is None else str(flow_run.id)
    tags = {}
    if flow_run is not None:
        address = url_for(flow_run) or str(flow_run.id)  # a server of this process alone has no pages
        tags = {"prefect.flow_run": flow_run.name, "prefect.flow_run_id": str(flow_run.id), PREFECT_RUN: address}
    revision = source_revision()
    tags |= {
        "recipe": config.name,
        "seed": str(seed),
        "commit": revision,
        "mlflow.source.git.commit": revision.removesuffix("-dirty"),
    }
    algorithm = store.settings.algorithm
    named = f"{name} {version_facts.source_label(config.workload.source)}"
    if algorithm != DEFAULT_ALGORITHM:
        named = f"{algorithm}: {named}"
    parameters = {**_known_parameters(config), "seed": seed}
    with runs.chain(store.settings, named, key=key, params=parameters, tags=tags) as run:
        yield Chain(store, run)


def log_sizes(store: Store, run: str, config: Recipe) -> None:
    """Mode and sizes of the tasks, as parameters of the chain's run; they are settled after ingestion."""
    tasks = config.tasks
    sizes = {"mode": tasks.mode, "tables_per_task": tasks.tables_per_task, "memory_bytes": tasks.memory_bytes}
    runs.log_params(store.settings, run, {"tasks": sizes})


def log_ingested(store: Store, run: str, ingested: Ingested, source: str) -> None:
    """The dataset version as an input of the run, and how many of its tables were new."""
    tables = store.lake.read_dataset(ingested.dataset)
    datasets.log_tables(store.settings, run, ingested.dataset, tables, source)
    runs.log_params(store.settings, run, {"tables_new": ingested.new, "tables_reused": ingested.reused})


def log_iteration(store: Store, run: str, iteration: int, figures: checkpoints.Metrics) -> None:
    """The figures of one iteration."""
    runs.log_metrics(store.settings, run, figures, iteration)


def log_effort(store: Store, run: str, training: str) -> None:
    """How much was measured, how long that took, and what a warm start saved."""
    runs.log_params(store.settings, run, training_effort.read(store, training).parameters)


def log_evaluation(store: Store, run: str, evaluation: str) -> None:
    """An evaluation of a training: figures, plots, its tasks as evaluation dataset, tables by placer and by task."""
    settings, report = store.settings, report_store.load(store.evaluations, evaluation)
    _log_tasks(store, run, report)
    runs.log_metrics(settings, run, report_tables.evaluation_metrics(report), tasks=report.tasks)
    runs.log_figures(settings, run, plots.plots(report, checkpoints.history(store, str(report.training))))
    runs.log_table(settings, run, report_tables.evaluation_table(report))
    runs.log_table(settings, run, report_tables.measured_rows(report), "evaluation_by_task")
    evaluation_plan.log_placement(store, run, report)


def log_comparison(store: Store, run: str, report: EvaluationReport) -> str:
    """A comparison: page, tables and evaluation dataset on its run, figures and page on the run of every version.

    Returns:
        Address of the run for people.
    """
    settings, page = store.settings, report_pages.comparison_page(report)
    _log_tasks(store, run, report)
    runs.log_table(settings, run, report_tables.comparison_table(report), "comparison")
    runs.log_table(settings, run, report_tables.measured_rows(report), "evaluation_by_task")
    _log_page(store, run, "comparison", page)
    for name, version in report.versions.items():
        _log_figures(store, version, report, report_tables.comparison_metrics(report, name))
        _log_page(store, registry.run_of(settings, version), f"comparisons/{report.key}", page)
        registry.tag(settings, version, {"comparison": report.key, "compared_tasks": report.tasks})
    return runs.run_address(settings, run)


def register(store: Store, run: str, report: EvaluationReport, budget_ms: float | None) -> str:
    """Register the evaluated placer as the next version; `run` holds its curves and figures.

    MLflow's page that compares versions shows this run, so the training's curves, what the version is made of and its
    tables are logged here as well.
    """
    settings, training, iteration = store.settings, str(report.training), int(report.iteration or 0)
    *earlier, last = checkpoints.history(store, training)[:iteration]
    for step, figures in enumerate(earlier, start=1):
        log_iteration(store, run, step, figures)
    origin, tables = training_effort.read_origin(store, training), store.lake.read_dataset(report.dataset)
    placer = checkpoints.placer(store, training, iteration, budget_ms)
    measured = placer.cost_network.measured_on
    log_effort(store, run, training)
    libraries = {} if measured is None else {"libraries": ", ".join(map(" ".join, measured.versions.items()))}
    facts = version_facts.facts(store, training, origin, iteration) | {"tasks": report.tasks} | libraries
    runs.log_params(settings, run, facts)
    datasets.log_tables(settings, run, report.dataset, tables, origin.source)
    tags = {"training": training, "iteration": iteration, "evaluation": report.key, "dataset": report.dataset}
    return registration.register_placer(
        settings,
        placer,
        run,
        Topology.of_setting(origin.setting),
        metrics=last,
        step=iteration,
        tags=tags | lineage.tags(origin, measured),
        pool=tables,
    )


def complete(store: Store, version: str, report: EvaluationReport) -> None:
    """Name the version and log the evaluation on its run, unless that is done: a run may have stopped before this.

    The champion that it was measured beside gets its own cost on the same tasks, so that MLflow sets both side by side.
    """
    settings = store.settings
    run, tags = registry.run_of(settings, version), registry.version_tags(settings, version)
    if "name" in tags:
        return
    _log_tasks(store, run, report)
    runs.log_table(settings, run, report_tables.evaluation_table(report))
    _log_figures(store, version, report, report_tables.evaluation_metrics(report))
    runs.log_metrics(settings, run, report_tables.gains_over_champion(report))
    for name, rival in report.versions.items():
        _log_figures(store, rival, report, {"eval_overall_ms": report.placer(name).overall_ms})
    origin = training_effort.read_origin(store, str(report.training))
    diff = version_facts.facts(store, str(report.training), origin, int(report.iteration or 0))["table_diff"]
    name = version_facts.version_name(version, origin, diff)
    runs.rename(settings, run, name)
    registry.tag(settings, version, {"name": name})


def has_report(store: Store, version: str) -> bool:
    """Whether `log_report` has finished for a version."""
    return runs.has_file(store.settings, registry.run_of(store.settings, version), f"{REPORT}.html")


def log_report(store: Store, version: str, report: EvaluationReport, page: str, decision: str) -> None:
    """The comparison report of a version: the decision and its table in the version's description, `page` on its run."""
    settings = store.settings
    run, name = registry.run_of(settings, version), registry.version_tags(settings, version).get("name", version)
    table, address = (
        markdown_table(report_tables.evaluation_table(report)),
        runs.tags(settings, run).get(PREFECT_RUN, ""),
    )
    links = {"Comparison report": runs.artifact_link(settings, run, f"{REPORT}.html")}
    if address.startswith("http"):
        links["Prefect run"] = address
    shown = " · ".join(f"[{name}]({link})" for name, link in links.items())
    note = f"\n\nNote: {report.caveat}." if report.caveat else ""
    about = f"{name}; {decision}\n\n{shown}\n\n{report_tables.title(report)}:\n\n{table}{note}"
    registry.describe(settings, version, about)
    runs.describe(settings, run, f"{name}\n\n{shown} · [Version]({registry.version_link(version)})")
    evaluation_plan.log_placement(store, run, report)
    _log_page(store, run, REPORT, page)


def _known_parameters(config: Recipe) -> dict[str, Any]:
    """The configuration without what `log_sizes` and `register` log: a parameter of a run has one value."""
    parameters: dict[str, Any] = asdict(config)
    parameters["recipe"] = parameters.pop("name")
    for name in ("mode", "tables_per_task", "memory_bytes"):
        del parameters["tasks"][name]
    del parameters["training"]["iterations"]
    return parameters


def _log_tasks(store: Store, run: str, report: EvaluationReport) -> None:
    datasets.log_tasks(store.settings, run, f"held-out tasks on {report.hardware}", report.tasks, report.key)


def _log_figures(store: Store, version: str, report: EvaluationReport, figures: Mapping[str, float | None]) -> None:
    """Figures of a version on the tasks of a report, on its run and its model."""
    settings = store.settings
    run, model = registry.run_of(settings, version), registry.model_of(settings, version)
    runs.log_metrics(settings, run, figures, tasks=report.tasks, model=model)


def _log_page(store: Store, run: str, name: str, markdown: str) -> None:
    runs.log_text(store.settings, run, f"{name}.md", markdown)
    runs.log_text(store.settings, run, f"{name}.html", html_page(markdown, name.replace("_", " ")))
