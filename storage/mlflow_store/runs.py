"""Runs in MLflow, by its fluent functions: one parent per chain, a nested run per stage, and their logs."""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow
import pandas as pd  # type: ignore[import-untyped]
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.data.pandas_dataset import from_pandas
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import (
    get_artifact_repository,
    get_registered_artifact_repositories,
)

from dreamshard.files.text import error_sentence, without_passwords
from storage.settings import LOCAL, Settings

EXPERIMENT = "dreamshard"
"""Name of the experiment that all runs are in."""

MODEL_TRAINING = "workflowType=machine_learning"
"""Of the address of a page of MLflow: show it as model training, and not as generative AI, which is the default."""

CHAIN_KEY = "dreamshard.chain"
STAGE = "dreamshard.stage"
DESCRIPTION = "mlflow.note.content"
_PARENT = "mlflow.parentRunId"
_LONGEST = 5000  # characters of a tag
_TRIES = 3


def client(settings: Settings) -> MlflowClient:
    """MLflow's client for the runs and versions of `settings`, which MLflow's own functions then use too."""
    _prepare(settings.tracking_uri)
    environment = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(settings.tracking_uri)
    mlflow.set_registry_uri(settings.tracking_uri)
    for name, value in environment.items():  # undo MLflow's changes: another home must not read them as the user's
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return MlflowClient(settings.tracking_uri, settings.tracking_uri)


@cache
def _prepare(tracking_uri: str) -> None:
    """Let MLflow create the tables of a database on this host, once per process and by one process at a time."""
    if tracking_uri.startswith(LOCAL):
        path = Path(tracking_uri.removeprefix(LOCAL))
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            MlflowClient(tracking_uri).search_experiments(max_results=1)


def experiment_id(settings: Settings) -> str:
    """MLflow's id of the experiment, which is created if there is none.

    Raises:
        ValueError: MLflow cannot keep files at their address.
    """
    tracking = client(settings)
    existing = tracking.get_experiment_by_name(EXPERIMENT)
    if existing is not None:
        return str(existing.experiment_id)
    location = None
    if not settings.tracking_uri.startswith("http"):  # a server chooses where its files go
        location = f"{settings.artifact_root}/{EXPERIMENT}"
        try:
            get_artifact_repository(location)  # the experiment points there for good, so the address must be usable
        except MlflowException as error:
            raise ValueError(
                f"MLflow cannot keep files at {location}; set DREAMSHARD_ARTIFACTS to an address that it can write"
            ) from error
    kind = {"mlflow.experimentKind": "custom_model_development"}  # lists of experiments then open as model training
    try:
        return str(tracking.create_experiment(EXPERIMENT, artifact_location=location, tags=kind))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return experiment_id(settings)  # another run has just created it


@contextmanager
def chain(
    settings: Settings, name: str, *, key: str | None = None, tags: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the id of a chain's parent run, which ends with the block.

    Args:
        name: how MLflow shows it, e.g. `retrain`.
        key: identifies this chain across restarts: an unfinished run of the same key is resumed. None for a new run.
        tags: tags for searching.
    """
    with _open(settings, name, {CHAIN_KEY: key} if key else {}, tags or {}) as run:
        yield run


@contextmanager
def stage(settings: Settings, parent: str, name: str) -> Iterator[str]:
    """Yield the id of a stage's run below its chain's; one that was opened before and has not finished is resumed."""
    with _open(settings, name, {_PARENT: parent, STAGE: name}, {}) as run:
        yield run


@contextmanager
def _open(settings: Settings, name: str, labels: Mapping[str, str], tags: Mapping[str, str]) -> Iterator[str]:
    """The newest unfinished run that carries `labels`, or a new one; a failed one says why in its description."""
    experiment = experiment_id(settings)
    resumed = _unfinished(settings, experiment, labels) if labels else None
    new = None if resumed else {**labels, **tags}
    with mlflow.start_run(resumed, experiment, name, nested=True, tags=new) as run:
        try:
            yield str(run.info.run_id)
        except BaseException as error:
            mlflow.set_tag(DESCRIPTION, error_sentence(error)[:_LONGEST])
            if not isinstance(error, Exception):
                mlflow.end_run("KILLED")
            raise


def _unfinished(settings: Settings, experiment: str, labels: Mapping[str, str]) -> str | None:
    query = " and ".join([*(f"tags.`{label}` = '{value}'" for label, value in labels.items()), "status != 'FINISHED'"])
    found = client(settings).search_runs([experiment], query, max_results=1)
    return str(found[0].info.run_id) if found else None


def end_killed(settings: Settings, key: str, why: str) -> None:
    """Mark the chain `key` and its unfinished stages as KILLED, also if the cancellation ended them as failed."""
    tracking = client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return
    unfinished = tracking.search_runs([experiment.experiment_id], "status != 'FINISHED'")
    found = {run.info.run_id: run.data.tags for run in unfinished}
    chains = {run for run, own in found.items() if own.get(CHAIN_KEY) == key}
    for run, own in found.items():
        if run in chains or own.get(_PARENT) in chains:
            tracking.set_tag(run, DESCRIPTION, why)
            tracking.set_terminated(run, "KILLED")


def log_params(settings: Settings, run: str, params: Mapping[str, Any]) -> None:
    """Log parameters, nested ones as `outer.inner`; those that the run has keep their value."""
    known = client(settings).get_run(run).data.params
    mlflow.log_params({name: value for name, value in _flatten(params) if name not in known}, run_id=run)


def log_metrics(
    settings: Settings,
    run: str,
    metrics: Mapping[str, float | None],
    step: int = 0,
    *,
    tasks: str = "",
    model: str | None = None,
) -> None:
    """Log metrics, except those that are None or not finite.

    Args:
        step: the iteration.
        tasks: key of the tasks that they were measured on. It becomes part of the names, since MLflow sets metrics of the
            same name side by side.
        model: MLflow's id of the model that they are of.
    """
    prefix = of_tasks(tasks) if tasks else ""
    finite = {
        f"{prefix}{name}": float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)
    }
    client(settings)
    if finite:
        mlflow.log_metrics(finite, step, run_id=run, model_id=model)


def of_tasks(tasks: str) -> str:
    """How names of metrics begin that were measured on tasks."""
    return f"tasks_{tasks[:8]}/"


def log_table(settings: Settings, run: str, rows: Sequence[Mapping[str, Any]], name: str = "evaluation") -> None:
    """Log rows as the table `tables/NAME.json`, which MLflow's UI shows and compares; once per run."""
    tracking, file = client(settings), f"tables/{name}.json"
    if rows and all(entry.path != file for entry in tracking.list_artifacts(run, "tables")):
        mlflow.log_table(pd.DataFrame([dict(row) for row in rows]), file, run_id=run)


def log_input(
    settings: Settings, run: str, frame: pd.DataFrame, context: str, *, source: str, name: str, digest: str
) -> None:
    """Log a dataset as an input of a run: `mlflow.log_input` for a run that need not be the active one.

    MLflow may refuse one of two runs that bring the same new dataset at once, so it tries again.
    """
    known = source if urlsplit(source).scheme in get_registered_artifact_repositories() else None
    with warnings.catch_warnings(action="ignore"):  # that whole numbers cannot be missing
        data = from_pandas(frame, known, name=name[:500], digest=digest[:36]).to_dict()  # type: ignore[arg-type]  # None too
    inputs = [DatasetInput(Dataset(**data), [InputTag("mlflow.data.context", context)])]
    for left in reversed(range(_TRIES)):
        try:
            client(settings).log_inputs(run, inputs)
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST" or not left:  # MLflow's code for a database error
                raise
        else:
            return


def data_of_runs(settings: Settings, runs: Sequence[str]) -> dict[str, tuple[dict[str, str], dict[str, float]]]:
    """Tags and parameters, and newest metrics, by run."""
    if not runs:
        return {}
    client(settings)
    wanted = ", ".join(f"'{run}'" for run in runs)
    found = mlflow.search_runs([experiment_id(settings)], f"attributes.run_id IN ({wanted})", output_format="list")
    return {run.info.run_id: ({**run.data.tags, **run.data.params}, run.data.metrics) for run in found}


def run_address(settings: Settings, run: str) -> str:
    """Where people find the run, without passwords: its page if there is a server, else the database and the run's id."""
    own = without_passwords(settings.tracking_uri)
    return f"{own.rstrip('/')}/{run_link(settings, run)}" if own.startswith("http") else f"{own} run {run}"


def run_link(settings: Settings, run: str, file: str = "") -> str:
    """Link to a run, or a file of it, on MLflow's pages, relative to the address of the server."""
    experiment = client(settings).get_run(run).info.experiment_id
    return f"#/experiments/{experiment}/runs/{run}{file and f'/artifacts/{file}'}?{MODEL_TRAINING}"


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
