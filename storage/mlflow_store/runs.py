"""Runs in MLflow, by its fluent functions: one per flow, a nested one per stage, their logs, and versions made of them."""

import importlib.metadata
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.data.pandas_dataset import from_pandas
from mlflow.entities import Dataset, DatasetInput, InputTag, RunData
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

import dreamshard
from dreamshard.files import error_sentence, without_passwords
from dreamshard.tables import Tables
from dreamshard.training import TrainedPlacer, save_placer
from storage.lake.rows import description_columns
from storage.mlflow_store import EXPERIMENT, LONGEST, registry
from storage.run_records.trainings import Training
from storage.settings import LOCAL, Settings

MODEL_TRAINING = "workflowType=machine_learning"
"""Of the address of a page of MLflow: show it as model training, and not as generative AI, which is the default."""

FLOW_RUN = "prefect.flow_run_id"
STAGE = "dreamshard.stage"
PREFECT_RUN = "prefect_run"
"""Tag of a run and a version: the address of the Prefect run that made it, or its id if it has no page."""
DESCRIPTION = "mlflow.note.content"
_PARENT = "mlflow.parentRunId"

_EXAMPLE = [
    {
        "num_devices": 2,
        "memory_gb": 1.0,
        "tables": [
            {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.0},
            {"name": "items", "rows": 200_000, "dim": 64, "pooling_factor": 12.5},
        ],
    }
]
"""An example request, which MLflow stores with every version."""

_REQUIREMENTS = (
    *("mlflow", "numpy", "pyarrow", "pydantic", "torch", "jaxtyping", "numba", "safetensors", "scipy", "psutil"),
    "pyyaml",
)
"""Packages that a version needs, pinned to those of its training; MLflow's inference takes minutes and a network."""


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


@dataclass(frozen=True)
class Run:
    """A run in MLflow: of a flow, or of a stage below it.

    Attributes:
        settings: address of MLflow.
        id: MLflow's.
    """

    settings: Settings
    id: str

    @property
    def tracking(self) -> MlflowClient:
        """MLflow's client."""
        return client(self.settings)

    @property
    def data(self) -> RunData:
        """Its tags, parameters and newest metrics."""
        return self.tracking.get_run(self.id).data

    @property
    def address(self) -> str:
        """Where people find it, without passwords: its page if there is a server, else the database and its id."""
        server = without_passwords(self.settings.tracking_uri)
        return f"{server.rstrip('/')}/{self.link()}" if server.startswith("http") else f"{server} run {self.id}"

    def link(self, file: str = "") -> str:
        """Link to it, or to a file of it, on MLflow's pages, relative to the address of the server."""
        experiment = self.tracking.get_run(self.id).info.experiment_id
        return f"#/experiments/{experiment}/runs/{self.id}{file and f'/artifacts/{file}'}?{MODEL_TRAINING}"

    def stage(self, name: str) -> AbstractContextManager["Run"]:
        """Open a stage's run below it for a block; one that was opened before and has not finished is resumed."""
        return open_run(self.settings, name, {_PARENT: self.id, STAGE: name})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; those that it has keep their value."""
        known = self.data.params
        mlflow.log_params({name: value for name, value in params.items() if name not in known}, run_id=self.id)

    def log_metrics(self, metrics: Mapping[str, float | None], step: int = 0, *, model: str | None = None) -> None:
        """Log metrics of an iteration, except those that are None or not finite; `model` is MLflow's id of theirs."""
        client(self.settings)
        known = {name: value for name, value in metrics.items() if value is not None}
        if finite := {name: float(value) for name, value in known.items() if math.isfinite(value)}:
            mlflow.log_metrics(finite, step, run_id=self.id, model_id=model)

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log rows as the table `tables/evaluation.json`, which MLflow's UI shows and compares; once per run."""
        file = "tables/evaluation.json"
        if rows and all(entry.path != file for entry in self.tracking.list_artifacts(self.id, "tables")):
            mlflow.log_table(pd.DataFrame(rows), file, run_id=self.id)

    def log_tables(self, tables: Tables, source: str, dataset: str) -> None:
        """Log tables as an input, whose digest is their dataset's version."""
        columns = {name: getattr(tables, name).numpy() for name in ("rows", "dim", "pooling_factor")}
        self._log_input(pd.DataFrame({"name": tables.names, **columns}), source, dataset, "training")

    def log_tasks(self, names: Sequence[str], key: str) -> None:
        """Log held-out tasks as an input, by whose digest runs on the same ones are found."""
        self._log_input(pd.DataFrame({"task": names}), "tasks", key, "evaluation")

    def _log_input(self, frame: pd.DataFrame, name: str, digest: str, context: str) -> None:
        """`mlflow.log_input` for a run that need not be the active one."""
        with warnings.catch_warnings(action="ignore"):  # that whole numbers cannot be missing
            data = from_pandas(frame, name=name[:500], digest=digest[:36]).to_dict()
        tags = [InputTag("mlflow.data.context", context)]
        self.tracking.log_inputs(self.id, [DatasetInput(Dataset(**data), tags)])


@contextmanager
def open_run(
    settings: Settings, name: str, labels: Mapping[str, str] = {}, tags: Mapping[str, str] = {}
) -> Iterator[Run]:
    """Open the run of a flow or a stage for a block; if it fails, its description says why.

    Args:
        name: how MLflow shows it, e.g. `retrain`.
        labels: tags that identify it across restarts: the newest unfinished run that has them is resumed. Empty: a new run.
        tags: further tags of a new run, for searching.
    """
    experiment, resumed = experiment_id(settings), None
    if labels:
        of_labels = [f"tags.`{label}` = '{value}'" for label, value in labels.items()]
        query = " and ".join([*of_labels, "status != 'FINISHED'"])
        unfinished = client(settings).search_runs([experiment], query, max_results=1)
        resumed = unfinished[0].info.run_id if unfinished else None
    new = None if resumed else {**labels, **tags}
    with mlflow.start_run(resumed, experiment, name, nested=True, tags=new) as run:
        try:
            yield Run(settings, str(run.info.run_id))
        except BaseException as error:
            mlflow.set_tag(DESCRIPTION, error_sentence(error)[:LONGEST])
            if not isinstance(error, Exception):
                mlflow.end_run("KILLED")
            raise


def end_killed(settings: Settings, key: str, why: str) -> None:
    """Mark the run of a flow and its unfinished stages as KILLED, also if the cancellation ended them as failed."""
    tracking = client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return
    unfinished = tracking.search_runs([experiment.experiment_id], "status != 'FINISHED'")
    tags_of = {run.info.run_id: run.data.tags for run in unfinished}
    chains = {run for run, tags in tags_of.items() if tags.get(FLOW_RUN) == key}
    for run, tags in tags_of.items():
        if run in chains or tags.get(_PARENT) in chains:
            tracking.set_tag(run, DESCRIPTION, why)
            tracking.set_terminated(run, "KILLED")


def data_of_runs(settings: Settings, runs: Sequence[str]) -> dict[str, tuple[dict[str, str], dict[str, float]]]:
    """Tags and parameters, and newest metrics, by run."""
    if not runs:
        return {}
    client(settings)
    wanted = ", ".join(f"'{run}'" for run in runs)
    finished = mlflow.search_runs([experiment_id(settings)], f"attributes.run_id IN ({wanted})", output_format="list")
    return {run.info.run_id: ({**run.data.tags, **run.data.params}, run.data.metrics) for run in finished}


def register_placer(
    settings: Settings,
    placer: TrainedPlacer,
    run: Run,
    made_of: Training,
    *,
    metrics: Mapping[str, float | None] | None = None,
    step: int = 0,
    tags: Mapping[str, Any] | None = None,
    pool: Tables | None = None,
) -> str:
    """Make a placer the next version of its model for its topology; returns the version's URI.

    Args:
        run: MLflow run of the training; MLflow's comparison of versions shows its metrics and parameters.
        made_of: the training; its model and topology decide on the registered model.
        metrics: of this version.
        step: iteration of the metrics.
        tags: further tags of the version.
        pool: training tables; their means replace fields that a served request omits.
    """
    name, experiment = made_of.registered_model, experiment_id(settings)
    called = f"{made_of.model}-{made_of.topology.label}"  # MLflow allows no dots here
    model = mlflow.initialize_logged_model(called, source_run_id=run.id, experiment_id=experiment)
    with TemporaryDirectory() as scratch:
        artifacts = {"placer": f"{scratch}/placer"}
        save_placer(placer, Path(artifacts["placer"]))
        if pool is not None:
            artifacts["pool"] = f"{scratch}/pool.parquet"
            pq.write_table(pa.table(description_columns(pool)), artifacts["pool"])
        mlflow.pyfunc.log_model(
            name=called,
            model_id=model.model_id,
            python_model=str(Path(__file__).with_name("placer_model.py")),
            artifacts=artifacts,
            code_paths=[str(Path(dreamshard.__path__[0]))],
            input_example=_EXAMPLE,
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _REQUIREMENTS],
        )
    mlflow.finalize_logged_model(model.model_id, "READY")
    # first: a version that exists has its metrics
    run.log_metrics(metrics or {}, step, model=model.model_id)
    labels = {**(tags or {}), registry.MADE_OF: made_of.to_json(), "algorithm": made_of.recipe.training.algorithm}
    if (measured := placer.cost_network.measured_on) is not None:
        labels[registry.MEASURED_ON] = measured.model_dump_json()
    tracking = run.tracking
    if not tracking.search_registered_models(f"name = '{name}'"):
        about = f"Places the embedding tables of {made_of.model}, by costs of {made_of.topology}."
        tracking.create_registered_model(name, description=about)
    version = tracking.create_model_version(
        name,
        f"models:/{model.model_id}",
        run.id,
        {label: str(value) for label, value in labels.items()},
        model_id=model.model_id,
    )
    return f"models:/{version.name}/{version.version}"
