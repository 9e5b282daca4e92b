"""What the flows tell MLflow: one parent run per chain, a child per stage, and the versions of the placer.

The words of the flows in terms of `storage.mlflow_store`; nothing here decides anything.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from prefect.context import FlowRunContext

from dreamshard.formatting import markdown_table
from dreamshard.model_files import save_placer
from dreamshard.recipes import Recipe
from flows.decisions.promotion import Decision
from flows.reports import comparison_page, comparisons, evaluation_page, evaluations, plots
from flows.reports.html import html_page
from flows.runtime.source_revision import commit
from storage.lake import catalog, home_lake
from storage.mlflow_store import alias_changes, datasets, evaluation_datasets, registration, registry, runs
from storage.run_records import checkpoints, lineage, training_effort
from storage.settings import Settings
from storage.store import open_store

if TYPE_CHECKING:
    from storage.lake.ingested import Ingested

REPORT = "comparison_report"
"""The page on every version's run that says how it compared when it was decided on."""


@dataclass(frozen=True)
class Chain:
    """An open parent run."""

    run: str

    @contextmanager
    def stage(self, name: str) -> Iterator[str]:
        """A child run for the block; failed if the block fails. Gives the child's id."""
        settings = Settings.load()
        with runs.stage(settings, self.run, name) as run:
            yield run
        catalog.write_catalog(settings)


@contextmanager
def chain(name: str, config: Recipe, seed: int) -> Iterator[Chain]:
    """The parent run of a flow; it goes on where the same Prefect run was interrupted."""
    context = FlowRunContext.get()
    flow_run = None if context is None or context.flow_run is None else context.flow_run
    key = None if flow_run is None else str(flow_run.id)
    tags = {} if flow_run is None else {"prefect.flow_run": flow_run.name, "prefect.flow_run_id": str(flow_run.id)}
    tags |= {
        "recipe": config.name,
        "seed": str(seed),
        "commit": commit(),
        "mlflow.source.git.commit": commit().removesuffix("-dirty"),
    }
    with runs.chain(Settings.load(), name, key=key, params={**asdict(config), "seed": seed}, tags=tags) as run:
        yield Chain(run)


def log_dataset(run: str, dataset: str, source: str) -> None:
    """The dataset version as an input of the run."""
    datasets.log_dataset(Settings.load(), run, dataset, home_lake().read_dataset(dataset), source)


def log_ingested(run: str, ingested: "Ingested", source: str) -> None:
    """The dataset version as an input of the run, and how many of its tables were new."""
    log_dataset(run, ingested.dataset, source)
    runs.log_metrics(Settings.load(), run, {"tables_new": ingested.new, "tables_reused": ingested.reused})


def log_iteration(run: str, iteration: int, figures: checkpoints.Metrics) -> None:
    """The figures of one iteration, as one batch."""
    runs.log_metrics(Settings.load(), run, figures, step=iteration)


def log_savings(run: str, training: str) -> None:
    """How much was measured, how long that took, and what an earlier placer saved."""
    runs.log_metrics(Settings.load(), run, training_effort.read(open_store(), training).metrics)


def log_evaluation(run: str, evaluation: str) -> None:
    """Figures, plots, the tasks as evaluation dataset, and the tables of an evaluation: by placer, and by task."""
    settings, figures = Settings.load(), evaluations.load(evaluation)
    evaluation_datasets.log_heldout(settings, run, _heldout(figures))
    runs.log_metrics(settings, run, evaluation_page.evaluation_metrics(figures))
    runs.log_figures(settings, run, plots.plots(figures, checkpoints.history(open_store(), figures["training"])))
    runs.log_table(settings, run, evaluation_page.summary_rows(figures))
    runs.log_table(settings, run, evaluation_page.task_rows(figures), "evaluation_by_task")


def log_comparison(run: str, figures: comparisons.Report) -> str:
    """A comparison: page, tables and evaluation dataset on its run, figures and page on the run of every version.

    Returns:
        Where people see the run.
    """
    settings, tasks = Settings.load(), _heldout(figures)
    text = comparison_page.markdown(figures)
    evaluation_datasets.log_heldout(settings, run, tasks, figures["versions"])
    runs.log_table(settings, run, comparison_page.rows(figures), "comparison")
    runs.log_table(settings, run, evaluation_page.task_rows(figures), "evaluation_by_task")
    _log_page(settings, run, "comparison", text)
    for name, version in figures["versions"].items():
        evaluation_datasets.log_figures_on(settings, version, comparison_page.metrics(figures, name), tasks)
        _log_page(settings, registry.run_of(settings, version), f"comparisons/{figures['key']}", text)
        registry.tag(settings, version, {"comparison": figures["key"]})
    return runs.run_address(settings, run)


def _log_page(settings: Settings, run: str, name: str, markdown: str) -> None:
    runs.log_text(settings, run, f"{name}.md", markdown)
    runs.log_text(settings, run, f"{name}.html", html_page(markdown, "dreamshard"))


def _heldout(figures: evaluations.Report) -> evaluation_datasets.HeldOut:
    return evaluation_datasets.HeldOut(
        dataset=figures["dataset"],
        tasks=figures["tasks"],
        hardware=figures["testbed"],
        evaluation=figures["key"],
        num_tasks=len({row["task"] for row in figures["rows"]}),
    )


def champion() -> str | None:
    """The version in use, or None."""
    return registry.champion(Settings.load())


def came_from(version: str, training: str, iteration: int) -> bool:
    """Whether a version is what a training had learnt by the end of the iteration."""
    tags = registry.version_tags(Settings.load(), version)
    return (tags.get("training"), tags.get("iteration")) == (training, str(iteration))


def version_of(training: str, iteration: int) -> str | None:
    """The version that a training's iteration was registered as, or None."""
    return registry.find_version(Settings.load(), {"training": training, "iteration": iteration})


def register(run: str, training: str, iteration: int, dataset: str, evaluation: str, budget_ms: float | None) -> str:
    """The placer learnt by the end of the iteration as the next version; `run` has its curves and figures.

    The page that compares versions shows this run, so what the stages' runs say of training is here as well.
    """
    *earlier, last = checkpoints.history(open_store(), training)[:iteration]
    for step, figures in enumerate(earlier, start=1):
        log_iteration(run, step, figures)
    settings, figures = Settings.load(), evaluations.load(evaluation)
    origin = {"dataset": dataset, "tasks": figures["tasks"], "hardware": figures["testbed"]}
    origin |= {"testbed": figures["testbed_kind"]}
    runs.set_tags(settings, run, origin)
    told = runs.tags(settings, run)
    origin |= {name: told[name] for name in ("recipe", "seed", "commit") if name in told}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "placer"
        save_placer(checkpoints.placer(open_store(), training, iteration, budget_ms), folder)
        return registration.register_placer(
            settings,
            folder,
            run,
            metrics=last | training_effort.read(open_store(), training).metrics,
            step=iteration,
            tags={"training": training, "iteration": iteration, "evaluation": evaluation}
            | origin
            | lineage.tags(training_effort.read_origin(open_store(), training)),
            pool=home_lake().read_dataset(dataset),
        )


def complete(version: str, iteration: int, evaluation: str) -> None:
    """What the evaluation found, on the version's run, unless it is there: a run may have been stopped before this."""
    settings, figures = Settings.load(), evaluations.load(evaluation)
    run = registry.run_of(settings, version)
    runs.log_table(settings, run, evaluation_page.summary_rows(figures))
    if "eval_overall_ms" not in runs.metrics(settings, run):
        evaluation_datasets.log_figures_on(
            settings, version, evaluation_page.evaluation_metrics(figures), _heldout(figures), iteration
        )


def has_report(version: str) -> bool:
    """Whether all that `log_report` writes is there."""
    settings = Settings.load()
    return runs.has_file(settings, registry.run_of(settings, version), f"{REPORT}.html")


def log_report(version: str, figures: evaluations.Report, text: str) -> None:
    """The comparison report of a version: its table in the version's description, then a page of its run.

    Args:
        figures: of the evaluation that decided on it.
        text: the report, Markdown.
    """
    settings = Settings.load()
    run = registry.run_of(settings, version)
    table = markdown_table(evaluation_page.summary_rows(figures))
    link = f"[Comparison report]({runs.artifact_link(settings, run, f'{REPORT}.html')})"
    note = f"\n\nNote: {figures['caveat']}." if figures.get("caveat") else ""
    registry.describe(settings, version, f"Held-out tasks on {figures['testbed']}:\n\n{table}{note}\n\n{link}")
    _log_page(settings, run, REPORT, text)


def set_alias(version: str, decision: Decision) -> None:
    """The alias that was decided on, and why."""
    alias_changes.set_alias(Settings.load(), version, decision.alias, decision.reason)


def make_champion(name: str, reason: str) -> dict[str, str | None]:
    """A version or alias as champion at once; what was champion and what it is now, with the why."""
    why = reason or "by hand"
    change = alias_changes.make_champion(Settings.load(), name, why, by=os.environ.get("USER") or "unknown")
    return {"version": change.version, "alias": "champion", "former": change.former, "reason": why}


def where(run: str, evaluation: str, training: str) -> dict[str, str]:
    """Where everything lies, for people."""
    settings = Settings.load()
    return {
        "lake": str(settings.lake_root),
        "catalog": str(settings.catalog_path),
        "checkpoints": str(checkpoints.folder(open_store(), training)),
        "evaluation": str(evaluations.path(evaluation)),
        "MLflow run": runs.run_address(settings, run),
    }
