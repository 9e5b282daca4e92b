"""Versions of the placer in MLflow's registry: what each is, how good it is, which one is in use, and why.

The model is `dreamshard`. Aliases: `champion` is the version in use, `challenger` the newest that did not beat it,
`previous` the champion before this one. Weights are safetensors and configurations JSON; nothing is pickled.
"""

import importlib.metadata
import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

import dreamshard
from dreamshard import model_files
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from storage import schemas
from storage.runs import client  # first: it turns MLflow's telemetry off
from storage.settings import Settings

# isort: split
import mlflow.artifacts
import mlflow.pyfunc
import pandas as pd  # type: ignore[import-untyped]
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

MODEL = "dreamshard"
ALIASES = ("champion", "challenger", "previous")
Alias = Literal["champion", "challenger", "previous"]

_REQUIREMENTS = ("mlflow", "numpy", "pandas", "pyarrow", "torch", "jaxtyping", "safetensors", "scipy")
"""What a version needs to place, pinned to what it was trained with; inferring it would take minutes and a network."""


def register_placer(
    settings: Settings,
    placer_folder: Path,
    run: str,
    *,
    metrics: Mapping[str, float | None] | None = None,
    step: int = 0,
    tags: Mapping[str, Any] | None = None,
    description: str = "",
    pool: Tables | None = None,
) -> str:
    """Make a saved placer the next version of `dreamshard`.

    Args:
        placer_folder: what `dreamshard.model_files.save_placer` wrote.
        run: MLflow run it came from; the page that compares versions shows this run's metrics and parameters.
        metrics: figures of this version, logged on the run and linked to the model; see `log_version_metrics`.
        step: the iteration that the figures are of.
        tags: on the version.
        description: for people, Markdown.
        pool: training tables, whose means fill in what a served request leaves out.

    Returns:
        The version's number, as MLflow has it: a string.

    Raises:
        ValueError: the folder holds no placer.
    """
    model_files.load_placer(placer_folder)  # a broken one must not become a version
    registry = client(settings)
    experiment = registry.get_run(run).info.experiment_id
    model = registry.create_logged_model(experiment, MODEL, source_run_id=run)
    with tempfile.TemporaryDirectory() as scratch:
        placer = shutil.copytree(placer_folder, Path(scratch) / "placer")  # the copy's name is its name in the version
        artifacts = {"placer": str(placer)}
        if pool is not None:
            artifacts["pool"] = str(_write_pool(Path(scratch) / "pool.parquet", pool))
        logged = Model.log(
            artifact_path=None,
            name=MODEL,
            model_id=model.model_id,
            flavor=mlflow.pyfunc,
            run_id=run,
            python_model=str(Path(__file__).with_name("placer_model.py")),
            artifacts=artifacts,
            code_paths=[str(Path(dreamshard.__path__[0]))],
            signature=_signature(),
            input_example=_EXAMPLE,
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _REQUIREMENTS],
        )
    registry.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    _ensure_model(settings)
    labels = {name: str(value) for name, value in (tags or {}).items()}
    version = registry.create_model_version(
        MODEL, logged.model_uri, run_id=run, tags=labels, description=description, model_id=logged.model_id
    ).version
    log_version_metrics(settings, str(version), metrics or {}, step)
    return str(version)


def log_version_metrics(settings: Settings, version: str, metrics: Mapping[str, float | None], step: int = 0) -> None:
    """Log figures of a version on its run, linked to its model; those that are None or not finite are left out."""
    registry = client(settings)
    found = registry.get_model_version(MODEL, version)
    run, model = str(found.run_id), str(found.source).removeprefix("models:/")
    values = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
    now_ms = int(time.time() * 1000)
    batch = [Metric(name, value, now_ms, step, model_id=model, run_id=run) for name, value in values.items()]
    if batch:
        registry.log_batch(run, metrics=batch)


def set_alias(
    settings: Settings, version: str, alias: Alias, reason: str, tags: Mapping[str, Any] | None = None
) -> None:
    """Point an alias at a version and say why on it, as tags `alias` and `reason` and in its description.

    A new champion makes the old one `previous`, and is no longer the challenger.

    Raises:
        ValueError: there is no such version.
    """
    registry = client(settings)
    version = str(_find(settings, version).version)  # which the database hands out as a number
    now = aliases(settings)
    if alias == "champion":
        former = now.get("champion")
        if former is not None and former != version:
            registry.set_registered_model_alias(MODEL, "previous", former)
        if now.get("challenger") == version:
            registry.delete_registered_model_alias(MODEL, "challenger")
    for name, value in {**(tags or {}), "alias": alias, "reason": reason}.items():
        registry.set_model_version_tag(MODEL, version, name, str(value))
    registry.update_model_version(MODEL, version, description=f"{alias}: {reason}")
    registry.set_registered_model_alias(MODEL, alias, version)  # last: who sees it sees why


def aliases(settings: Settings) -> dict[str, str]:
    """Alias to version; empty while nothing is registered."""
    try:
        found = client(settings).get_registered_model(MODEL).aliases
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return {}
    return {alias: str(version) for alias, version in found.items()}


def champion(settings: Settings) -> str | None:
    """The version in use, or None before the first."""
    return aliases(settings).get("champion")


def version_tags(settings: Settings, version: str) -> dict[str, str]:
    """Tags of a version or alias.

    Raises:
        ValueError: there is no such version.
    """
    return dict(_find(settings, version).tags)


def find_version(settings: Settings, tags: Mapping[str, Any]) -> str | None:
    """The newest version that carries all of `tags`, or None."""
    wanted = {(name, str(value)) for name, value in tags.items()}
    matching = [found for found in _all(settings) if wanted <= set(found.tags.items())]
    return str(matching[0].version) if matching else None


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions, newest first: version, aliases, created_at (UTC), run, reason, and every metric by its name."""
    registry, names = client(settings), aliases(settings)
    found = []
    for each in _all(settings):
        metrics = registry.get_run(each.run_id).data.metrics if each.run_id else {}
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.creation_timestamp / 1000))
        found.append(
            {
                "version": str(each.version),
                "aliases": ", ".join(alias for alias, version in names.items() if version == str(each.version)),
                "created_at": created,
                "run": each.run_id,
                "reason": each.tags.get("reason", ""),
                **dict(sorted(metrics.items())),
            }
        )
    columns = dict.fromkeys(name for row in found for name in row)
    return [{name: row.get(name) for name in columns} for row in found]


def load_placer(name: str = "champion", settings: Settings | None = None) -> DreamShardPlacer:
    """The placer of an alias or version, from safetensors and JSON.

    Args:
        name: `champion`, `challenger`, `previous`, or a version's number.
        settings: where the registry is; by default what the environment says.

    Raises:
        ValueError: there is none of that name (the message lists those there are), or its files are gone or damaged.
    """
    home = settings or Settings.load()
    version = _find(home, name)
    try:
        folder = mlflow.artifacts.download_artifacts(
            f"models:/{MODEL}/{version.version}", tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri
        )
    except (MlflowException, OSError) as error:
        raise ValueError(
            f"the files of version {version.version} of {MODEL} cannot be read ({error}), so it cannot place; restore "
            f"{version.source}, or use another version"
        ) from error
    return model_files.load_placer(Path(folder) / "artifacts" / "placer")


def _find(settings: Settings, name: str) -> ModelVersion:
    known = aliases(settings)
    number = known.get(name, name)
    if number.isdigit():
        try:
            return client(settings).get_model_version(MODEL, number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    there = [f"{alias} (version {version})" for alias, version in known.items()]
    there += [f"version {found.version}" for found in _all(settings)]
    raise ValueError(
        f"there is no {f'{name} yet' if name in ALIASES else f'version {name!r}'} of {MODEL} at "
        f"{settings.tracking_uri}, so nothing can be loaded; "
        + (f"there are {', '.join(there)}" if there else "train one first with `dreamshard run`")
    )


def _all(settings: Settings) -> Sequence[ModelVersion]:
    """Newest first; without aliases, which MLflow leaves out of what a search returns."""
    found = client(settings).search_model_versions(f"name='{MODEL}'", max_results=1000)
    return sorted(found, key=lambda version: -int(version.version))


def _ensure_model(settings: Settings) -> None:
    try:
        client(settings).create_registered_model(MODEL, description="Places embedding tables on devices.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _write_pool(path: Path, pool: Tables) -> Path:
    columns: dict[str, Any] = {
        "name": list(pool.names),
        "rows": pool.rows.numpy(),
        "dim": pool.dim.numpy(),
        "pooling_factor": pool.pooling_factor.double().numpy(),
        **{name: pool.bins[:, j].double().numpy() for j, name in enumerate(schemas.BINS)},
        "lookups": pool.lookups.numpy(),
        "unique_rows": pool.unique_rows.numpy(),
    }
    pq.write_table(pa.table(columns), path)
    return path


def _signature() -> ModelSignature:
    """What a request must and may hold, and what the answer does; see `placer_model`."""
    needed = {"name": DataType.string, "rows": DataType.long, "dim": DataType.long, "pooling_factor": DataType.double}
    answer = {
        "table": DataType.string,
        "device": DataType.long,
        "column_start": DataType.long,
        "column_end": DataType.long,
        "device_ms": DataType.double,
        "overall_ms": DataType.double,
    }
    given: list[ColSpec | TensorSpec] = [ColSpec(kind, name) for name, kind in needed.items()]
    given += [ColSpec(DataType.double, name, required=False) for name in schemas.BINS]
    return ModelSignature(
        inputs=Schema(given),
        outputs=Schema([ColSpec(kind, name) for name, kind in answer.items()]),
        params=ParamSchema(
            [
                ParamSpec("num_devices", DataType.long, 0),  # 0 stands for not given, which the model refuses
                ParamSpec("memory_gb", DataType.double, 0.0),
                ParamSpec("budget_ms", DataType.double, -1.0),
                ParamSpec("precision", DataType.string, "fp32"),
                ParamSpec("optimizer", DataType.string, "sgd"),
            ]
        ),
    )


_EXAMPLE = (
    pd.DataFrame(
        {
            "name": ["users", "items", "words"],
            "rows": [1_000_000, 200_000, 50_000],
            "dim": [64, 64, 32],
            "pooling_factor": [1.0, 12.5, 30.0],
        }
    ),
    {"num_devices": 2, "memory_gb": 1.0},
)
