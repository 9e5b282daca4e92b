"""A sweep's figures in MLflow and Prefect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

from dreamshard.sweep import CellResult, Sweep, page, summarise
from flows.reports.html import html_page
from flows.reports.sweep_plots import plots, svg
from flows.runtime.source_revision import source_revision
from storage.mlflow_store import runs
from storage.store import Store

_PAGE = "sweep"


@contextmanager
def run_of(store: Store, sweep: Sweep, **options: object) -> Iterator[str]:
    """Open the MLflow run of a sweep, or reopen it if the same Prefect run was interrupted; yields its id."""
    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    key = None if flow_run is None else str(flow_run.id)
    params = {"sweep": sweep.name, "cells": len(sweep.cells), **options}
    with runs.chain(
        store.settings, f"sweep {sweep.name}", key=key, params=params, tags={"commit": source_revision()}
    ) as run:
        yield run


def publish(store: Store, run: str, sweep: Sweep, results: Sequence[CellResult]) -> dict[str, Any]:
    """The page, the plots and the figures; returns the outcome of the flow."""
    figures, markdown = summarise(results), markdown_of(sweep, results)
    metrics: dict[str, float | None] = {}
    for each in figures:
        setting = each.setting
        name = (
            f"{setting.experiment}.{setting.source}.{setting.dims}.{setting.trained}.{setting.placed}.{setting.budget}"
        )
        metrics[f"gain.{name}.{each.placer}"] = each.gain.mean
        metrics[f"cost_ms.{name}.{each.placer}"] = each.mean_ms
    drawn = plots(figures)
    runs.log_metrics(store.settings, run, metrics)
    runs.log_figures(store.settings, run, drawn)
    runs.log_text(store.settings, run, f"{_PAGE}.md", markdown)
    shown = {name: f"plots/{name}.png" for name in drawn}
    runs.log_text(store.settings, run, f"{_PAGE}.html", html_page(markdown_of(sweep, results, shown), "dreamshard"))
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown, key="dreamshard-sweep", description=f"Sweep {sweep.name}")
    return {
        "sweep": sweep.name,
        "cells": len(sweep.cells),
        "page": runs.run_address(store.settings, run),
        "markdown": markdown,
    }


def markdown_of(
    sweep: Sweep,
    results: Sequence[CellResult],
    pictures: Mapping[str, str] | None = None,
    commits: Mapping[str, str] | None = None,
) -> str:
    """The page with the commit that it is of, and how many cells it lacks.

    Args:
        pictures: addresses of plots.
        commits: of the source that computed the results, by experiment or part of one; None for the one that runs.
    """
    done = len({(each.experiment, each.source, each.dims, each.trained, each.budget, each.seed) for each in results})
    cells = f"{len(sweep.cells)} cells" if done == len(sweep.cells) else f"{done} of {len(sweep.cells)} cells"
    return f"Sweep `{sweep.name}`, {cells}, at {_origin(commits)}.\n\n{page(results, pictures)}"


def _origin(commits: Mapping[str, str] | None) -> str:
    """The commit of all, or each with its experiments."""
    if commits is None:
        return f"`{source_revision()}`"
    experiments: dict[str, list[str]] = {}
    for experiment, commit in commits.items():
        experiments.setdefault(commit, []).append(experiment)
    if len(experiments) == 1:
        return f"`{next(iter(experiments))}`"
    return ", ".join(f"`{commit}` ({', '.join(names)})" for commit, names in experiments.items())


def write_pictures(results: Sequence[CellResult], beside: Path) -> dict[str, str]:
    """Write the plots as `docs/pictures/sweep-NAME.svg` in the folder of a file; returns their addresses in that file."""
    addresses = {}
    for name, picture in plots(summarise(results)).items():
        address = f"docs/pictures/sweep-{name}.svg"
        file = beside.parent / address
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(svg(picture))
        addresses[name] = address
    return addresses
