"""Runs in MLflow: one parent per chain, one child per stage, and what they log.

Everything goes through the client and never through MLflow's active run, so two chains in one process do not mix.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from dreamshard.files.text import without_passwords
from storage.mlflow_store import database, run_endings
from storage.mlflow_store.experiment import EXPERIMENT, MODEL_TRAINING, experiment_id
from storage.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAIN_KEY = "dreamshard.chain"
STAGE = "dreamshard.stage"
_PARENT = "mlflow.parentRunId"
_BATCH = 100  # parameters, or runs, that MLflow accepts at once
_MOST_METRICS = 1000  # likewise


def client(settings: Settings) -> MlflowClient:
    """MLflow's client for the runs and versions of `settings`, which MLflow's own functions then use too."""
    database.prepare(settings.tracking_uri)
    environment = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(settings.tracking_uri)
    mlflow.set_registry_uri(settings.tracking_uri)
    for name, value in environment.items():  # undo MLflow's changes: another home must not read them as the user's
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return MlflowClient(settings.tracking_uri, settings.tracking_uri)


@contextmanager
def chain(
    settings: Settings,
    name: str,
    *,
    key: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the id of a chain's parent run, closed as FINISHED, FAILED or (if interrupted) KILLED when the block ends.

    Args:
        name: how MLflow shows it, e.g. `retrain`.
        key: identifies this chain across restarts: an unfinished run of the same key is resumed. None for a new run.
        params: parameters of the whole chain; nested mappings become `outer.inner`.
        tags: tags for searching.
    """
    tracking = client(settings)
    labels = {CHAIN_KEY: key} if key else {}
    with _open(settings, experiment_id(tracking, settings), name, labels, tags) as run:
        log_params(settings, run, params or {})
        yield run


def end_killed(settings: Settings, key: str, why: str) -> None:
    """Mark the chain `key`, and its stages, as KILLED if they are still running: whoever ran them cannot do it."""
    tracking = client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT)
    if experiment is not None:
        run_endings.end_killed(tracking, experiment.experiment_id, why, {CHAIN_KEY: key})


@contextmanager
def stage(settings: Settings, parent: str, name: str) -> Iterator[str]:
    """Yield the id of a stage's run below its chain's, closed like that; one opened before and not finished is resumed."""
    experiment = client(settings).get_run(parent).info.experiment_id
    with _open(settings, experiment, name, {_PARENT: parent, STAGE: name}) as run:
        yield run


def rename(settings: Settings, run: str, name: str) -> None:
    """Give a run another name for people."""
    client(settings).update_run(run, name=name)


def describe(settings: Settings, run: str, text: str) -> None:
    """Set the description (Markdown) that MLflow shows above a run."""
    set_tags(settings, run, {"mlflow.note.content": text})


def log_params(settings: Settings, run: str, params: Mapping[str, Any], *, only_new: bool = False) -> None:
    """Log parameters, nested ones as `outer.inner`; MLflow refuses another value of one that the run has.

    Args:
        only_new: leave out those that the run has.
    """
    known = client(settings).get_run(run).data.params if only_new else {}
    flat = [Param(name, str(value)) for name, value in _flatten(params) if name not in known]
    for start in range(0, len(flat), _BATCH):
        client(settings).log_batch(run, params=flat[start : start + _BATCH])


def log_metrics(settings: Settings, run: str, metrics: Mapping[str, float | None], step: int | None = None) -> None:
    """Log metrics in batches, except those that are None or not finite.

    Args:
        step: the iteration; metrics logged before for this step stay, so that a resumed chain may log all of them again.
            None for metrics of the whole run.
    """
    tracking = client(settings)
    values = finite(metrics)
    if step is not None:
        known = tracking.get_run(run).data.metrics
        values = {
            name: value
            for name, value in values.items()
            if name not in known or all(old.step != step for old in tracking.get_metric_history(run, name))
        }
    if values:
        now_ms = int(time.time() * 1000)
        batch = [Metric(name, value, now_ms, step or 0) for name, value in values.items()]
        for start in range(0, len(batch), _MOST_METRICS):
            tracking.log_batch(run, batch[start : start + _MOST_METRICS])


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The metrics that MLflow can keep: neither None, infinite nor NaN."""
    return {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}


def log_figures(settings: Settings, run: str, figures: Mapping[str, "Figure"]) -> None:
    """Log plots as `plots/NAME.png`."""
    for name, figure in figures.items():
        client(settings).log_figure(run, figure, f"plots/{name}.png")


def log_table(settings: Settings, run: str, rows: Sequence[Mapping[str, Any]], name: str = "evaluation") -> None:
    """Log rows as the table `tables/NAME.json`, which MLflow's UI shows and compares; once per run."""
    tracking, file = client(settings), f"tables/{name}.json"
    if rows and all(entry.path != file for entry in tracking.list_artifacts(run, "tables")):
        tracking.log_table(run, pd.DataFrame([dict(row) for row in rows]), file)


def log_text(settings: Settings, run: str, file: str, text: str) -> None:
    """Log a text file; MLflow renders `.html` and shows other types as plain text."""
    client(settings).log_text(run, text, file)


def has_file(settings: Settings, run: str, file: str) -> bool:
    """Whether a run has this top-level file."""
    return any(entry.path == file for entry in client(settings).list_artifacts(run))


def tags(settings: Settings, run: str) -> dict[str, str]:
    """The tags of a run."""
    return dict(client(settings).get_run(run).data.tags)


def metrics(settings: Settings, run: str) -> dict[str, float]:
    """The newest metrics of a run."""
    return dict(client(settings).get_run(run).data.metrics)


def metrics_of_runs(settings: Settings, runs: Sequence[str]) -> dict[str, dict[str, float]]:
    """The newest metrics by run."""
    tracking = client(settings)
    experiment = experiment_id(tracking, settings)
    found: dict[str, dict[str, float]] = {}
    for start in range(0, len(runs), _BATCH):
        wanted = ", ".join(f"'{run}'" for run in runs[start : start + _BATCH])
        for run in tracking.search_runs([experiment], f"attributes.run_id IN ({wanted})"):
            found[run.info.run_id] = run.data.metrics
    return found


def artifact_link(settings: Settings, run: str, file: str) -> str:
    """Link to a file of a run on MLflow's pages, relative to the address of the server."""
    experiment = client(settings).get_run(run).info.experiment_id
    return f"#/experiments/{experiment}/runs/{run}/artifacts/{file}?{MODEL_TRAINING}"


def set_tags(settings: Settings, run: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a run."""
    client(settings).log_batch(run, tags=[RunTag(name, str(value)) for name, value in tags.items()])


def run_address(settings: Settings, run: str, server: str = "") -> str:
    """Where people find the run, without passwords: its page if there is a server, else the database and the run's id.

    Args:
        server: address of one that shows the database `tracking_uri`; not needed if that is a server itself.
    """
    own = without_passwords(settings.tracking_uri)
    server = own if own.startswith("http") else server
    if not server:
        return f"{own} run {run}"
    experiment = client(settings).get_run(run).info.experiment_id
    return f"{server.rstrip('/')}/#/experiments/{experiment}/runs/{run}?{MODEL_TRAINING}"


@contextmanager
def _open(
    settings: Settings, experiment: str, name: str, labels: Mapping[str, str], tags: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The newest unfinished run that carries `labels`, or a new one; closed when the block ends."""
    tracking = client(settings)
    run = _unfinished(tracking, experiment, labels) if labels else None
    if run is not None:
        tracking.update_run(run, status="RUNNING")
        for tag in run_endings.TAGS & tracking.get_run(run).data.tags.keys():
            tracking.delete_tag(run, tag)
    else:
        user = {"mlflow.user": os.environ.get("USER", "dreamshard"), "mlflow.source.name": "dreamshard"}
        all_tags = {**user, **labels, **(tags or {})}
        run = str(tracking.create_run(experiment, tags=all_tags, run_name=name).info.run_id)
    with run_endings.ending(lambda: client(settings), run):
        yield run


def _unfinished(tracking: MlflowClient, experiment: str, labels: Mapping[str, str]) -> str | None:
    """The search has no escapes, only two kinds of quotation marks."""
    quoted = {label: f'"{value}"' if "'" in value else f"'{value}'" for label, value in labels.items()}
    conditions = [f"tags.`{label}` = {value}" for label, value in quoted.items()]
    query = " and ".join([*conditions, "attributes.status != 'FINISHED'"])
    found = tracking.search_runs([experiment], query, max_results=1, order_by=["attributes.start_time DESC"])
    return str(found[0].info.run_id) if found else None


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
