"""Runs in MLflow: one parent per chain, a child per stage, and what they log.

Everything goes through the client, never through MLflow's active run, so that two chains in one process do not mix.
`registry` holds the versions of the placer.
"""

import importlib.util
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from storage.settings import Settings, quiet_environment

quiet_environment()  # MLflow decides on its telemetry when it is first imported

import mlflow  # noqa: E402
import pandas as pd  # type: ignore[import-untyped]  # noqa: E402
from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.store.artifact.artifact_repository_registry import (  # noqa: E402
    get_registered_artifact_repositories,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPERIMENT = "dreamshard"
CHAIN_KEY = "dreamshard.chain"
STAGE = "dreamshard.stage"
_PARENT = "mlflow.parentRunId"
_BATCH = 100  # parameters that MLflow takes at once

Status = Literal["FINISHED", "FAILED", "KILLED"]


def client(settings: Settings) -> MlflowClient:
    """MLflow's client for the home's runs and versions; makes `settings` what MLflow's own functions use."""
    caller = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(settings.tracking_uri)
    mlflow.set_registry_uri(settings.tracking_uri)
    for name, value in caller.items():  # which both have overwritten: the next home would take it for the caller's wish
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return MlflowClient(settings.tracking_uri, settings.tracking_uri)


def start_chain(
    settings: Settings,
    name: str,
    *,
    key: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Open the parent run of a chain.

    Args:
        name: how MLflow shows it, e.g. `retrain`.
        key: names this chain across restarts: the run of the same key that did not finish goes on. None for a new run.
        params: of the whole chain; nested mappings become `outer.inner`.
        tags: anything worth searching for.

    Returns:
        The run's id.
    """
    tracking = client(settings)
    labels = {CHAIN_KEY: key} if key else {}
    run = _open(tracking, _experiment(tracking, settings), name, labels, resume=key is not None, tags=tags)
    if params:
        log_params(settings, run, params)
    return run


def child_run(
    settings: Settings,
    parent: str,
    stage: str,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Open the run of a stage below its chain's; one that was opened before and did not finish goes on.

    Returns:
        The run's id.
    """
    tracking = client(settings)
    experiment = tracking.get_run(parent).info.experiment_id
    run = _open(tracking, experiment, stage, {_PARENT: parent, STAGE: stage}, resume=True, tags=tags)
    if params:
        log_params(settings, run, params)
    return run


def end(settings: Settings, run: str, status: Status = "FINISHED") -> None:
    """Close a run."""
    client(settings).set_terminated(run, status)


@contextmanager
def chain(
    settings: Settings,
    name: str,
    *,
    key: str | None = None,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """`start_chain`, closed as FINISHED or FAILED (KILLED where interrupted) when the block ends."""
    run = start_chain(settings, name, key=key, params=params, tags=tags)
    with _closing(settings, run):
        yield run


@contextmanager
def stage(
    settings: Settings,
    parent: str,
    name: str,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """`child_run`, closed as FINISHED or FAILED (KILLED where interrupted) when the block ends."""
    run = child_run(settings, parent, name, params=params, tags=tags)
    with _closing(settings, run):
        yield run


def log_params(settings: Settings, run: str, params: Mapping[str, Any]) -> None:
    """Log parameters; nested mappings become `outer.inner`. The same values again change nothing."""
    found = [Param(name, str(value)) for name, value in _flatten(params)]
    for start in range(0, len(found), _BATCH):
        client(settings).log_batch(run, params=found[start : start + _BATCH])


def log_metrics(settings: Settings, run: str, metrics: Mapping[str, float | None], step: int | None = None) -> None:
    """Log metrics in one batch; those that are None or not finite are left out.

    Args:
        step: the iteration; what is already there for this step is left as it is, so that a resumed chain may say
            everything again. None for figures of the whole run.
    """
    tracking = client(settings)
    values = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
    if step is not None:
        known = tracking.get_run(run).data.metrics
        values = {
            name: value
            for name, value in values.items()
            if name not in known or all(old.step != step for old in tracking.get_metric_history(run, name))
        }
    now_ms = int(time.time() * 1000)
    if values:
        tracking.log_batch(run, [Metric(name, value, now_ms, step or 0) for name, value in values.items()])


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
    """Log a page of text, by the end of its name as MLflow shows it: `.html` as a page, `.md` as it is."""
    client(settings).log_text(run, text, file)


def has_file(settings: Settings, run: str, file: str) -> bool:
    """Whether a run has a file at its top."""
    return any(entry.path == file for entry in client(settings).list_artifacts(run))


def tags(settings: Settings, run: str) -> dict[str, str]:
    """The tags of a run."""
    return dict(client(settings).get_run(run).data.tags)


def metrics(settings: Settings, run: str) -> dict[str, float]:
    """The newest figures of a run."""
    return dict(client(settings).get_run(run).data.metrics)


def artifact_link(settings: Settings, run: str, file: str) -> str:
    """Where MLflow's pages show a file of a run, as a link that holds on whatever address they are served."""
    experiment = client(settings).get_run(run).info.experiment_id
    return f"#/experiments/{experiment}/runs/{run}/artifacts/{file}"


def set_tags(settings: Settings, run: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a run, e.g. addresses of what belongs to it."""
    client(settings).log_batch(run, tags=[RunTag(name, str(value)) for name, value in tags.items()])


def run_address(settings: Settings, run: str) -> str:
    """Where people see the run: its page if `tracking_uri` is a server, else the database and the run's id."""
    if not settings.tracking_uri.startswith("http"):
        return f"{settings.tracking_uri} run {run}"
    experiment = client(settings).get_run(run).info.experiment_id
    return f"{settings.tracking_uri.rstrip('/')}/#/experiments/{experiment}/runs/{run}"


def _experiment(tracking: MlflowClient, settings: Settings) -> str:
    found = tracking.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    own = not settings.tracking_uri.startswith("http")  # a server says itself where its files go
    if own:
        _check_artifacts(settings.artifact_root)
    location = f"{settings.artifact_root}/{EXPERIMENT}" if own else None
    try:
        return str(tracking.create_experiment(EXPERIMENT, artifact_location=location))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return _experiment(tracking, settings)  # another run was the first, a moment ago


def _check_artifacts(root: str) -> None:
    """Check that MLflow can keep files there, before an experiment points there for good.

    Raises:
        ValueError: it knows no such address, or what it needs is not installed.
    """
    scheme = root.partition("://")[0]
    known = get_registered_artifact_repositories()
    if scheme not in known:
        raise ValueError(
            f"MLflow cannot keep its files at {root}, since it knows no {scheme}://, so no version could be registered; "
            f"set DREAMSHARD_ARTIFACTS to an address of one of {sorted(filter(None, known))}"
        )
    if scheme == "s3" and importlib.util.find_spec("boto3") is None:
        raise ValueError(
            f"MLflow's files are to lie at {root} and boto3 is not installed, so no version could be registered; "
            "pip install 'dreamshard[s3]'"
        )


def _open(
    tracking: MlflowClient,
    experiment: str,
    name: str,
    labels: Mapping[str, str],
    *,
    resume: bool,
    tags: Mapping[str, str] | None,
) -> str:
    """A new run, or the newest unfinished one that carries `labels`, reopened."""
    if resume:
        wanted = [f"tags.`{label}` = {_quoted(value)}" for label, value in labels.items()]
        query = " and ".join([*wanted, "attributes.status != 'FINISHED'"])
        found: Sequence[Run] = tracking.search_runs(
            [experiment], query, max_results=1, order_by=["attributes.start_time DESC"]
        )
        if found:
            tracking.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
    user = {"mlflow.user": os.environ.get("USER", "dreamshard"), "mlflow.source.name": "dreamshard"}
    return str(tracking.create_run(experiment, tags=user | dict(labels) | dict(tags or {}), run_name=name).info.run_id)


def _quoted(value: str) -> str:
    """`value` as MLflow's search takes it; it knows no escapes, only two kinds of quotation marks."""
    return f'"{value}"' if "'" in value else f"'{value}'"


@contextmanager
def _closing(settings: Settings, run: str) -> Iterator[None]:
    status: Status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        status = "KILLED"
        raise
    finally:
        end(settings, run, status)


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
