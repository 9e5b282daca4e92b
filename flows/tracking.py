"""What the flows tell MLflow: one parent run per chain, a child per stage, and the versions of the placer.

The words of the flows in terms of `storage.runs` and `storage.registry`; nothing here decides anything.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from prefect.context import FlowRunContext

from dreamshard.model_files import save_placer
from dreamshard.recipes import Recipe
from flows import checkpoints, evaluations, plots, report
from flows.decision import Decision
from flows.measuring import lake
from storage import catalog, registry, runs
from storage.settings import Settings

if TYPE_CHECKING:
    from flows.ingest import Ingested


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
    with runs.chain(Settings.load(), name, key=key, params={**asdict(config), "seed": seed}, tags=tags) as run:
        yield Chain(run)


def log_dataset(run: str, dataset: str, source: str) -> None:
    """The dataset version as an input of the run."""
    runs.log_dataset(Settings.load(), run, dataset, lake().read_dataset(dataset), source)


def log_ingested(run: str, ingested: "Ingested", source: str) -> None:
    """The dataset version as an input of the run, and how many of its tables were new."""
    log_dataset(run, ingested.dataset, source)
    runs.log_metrics(Settings.load(), run, {"tables_new": ingested.new, "tables_reused": ingested.reused})


def log_iteration(run: str, iteration: int, figures: checkpoints.Metrics) -> None:
    """The figures of one iteration, as one batch."""
    runs.log_metrics(Settings.load(), run, figures, step=iteration)


def log_evaluation(run: str, evaluation: str) -> None:
    """Figures, plots and the table of an evaluation."""
    settings, figures = Settings.load(), evaluations.load(evaluation)
    runs.log_metrics(settings, run, report.evaluation_metrics(figures))
    runs.log_figures(settings, run, plots.plots(figures, checkpoints.history(figures["training"])))
    runs.log_table(settings, run, report.summary_rows(figures))


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
    *earlier, last = checkpoints.history(training)[:iteration]
    for step, figures in enumerate(earlier, start=1):
        log_iteration(run, step, figures)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "placer"
        save_placer(checkpoints.placer(training, iteration, budget_ms), folder)
        return registry.register_placer(
            Settings.load(),
            folder,
            run,
            metrics=last | report.evaluation_metrics(evaluations.load(evaluation)),
            step=iteration,
            tags={"training": training, "iteration": iteration, "dataset": dataset, "evaluation": evaluation},
            pool=lake().read_dataset(dataset),
        )


def set_alias(version: str, decision: Decision, evaluation: str) -> None:
    """The alias that was decided on, and why."""
    figures = {name: f"{value:.6g}" for name, value in report.evaluation_metrics(evaluations.load(evaluation)).items()}
    registry.set_alias(Settings.load(), version, decision.alias, decision.reason, figures)


def make_champion(name: str, reason: str) -> dict[str, str | None]:
    """A version or alias as champion at once; what was champion and what it is now, with the why."""
    why = reason or "by hand"
    change = registry.make_champion(Settings.load(), name, why, by=os.environ.get("USER") or "unknown")
    return {"version": change.version, "alias": "champion", "former": change.former, "reason": why}


def where(run: str, evaluation: str, training: str) -> dict[str, str]:
    """Where everything lies, for people."""
    settings = Settings.load()
    return {
        "lake": str(settings.lake_root),
        "catalog": str(settings.catalog_path),
        "checkpoints": str(checkpoints.folder(training)),
        "evaluation": str(evaluations.path(evaluation)),
        "MLflow run": runs.run_address(settings, run),
    }
