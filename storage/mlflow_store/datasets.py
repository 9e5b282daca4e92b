"""Datasets as inputs of MLflow's runs: the tables that a version was trained on, and the tasks that it was measured on."""

import json
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.exceptions import MlflowException
from mlflow.types import ColSpec, Schema

from dreamshard.tables import Tables
from storage.lake.parquet_files import hive_folder
from storage.mlflow_store.runs import client
from storage.settings import Settings

_TABLES = {"name": "string", "rows": "long", "dim": "long", "pooling_factor": "double"}
_EVALUATIONS = {
    **{"task": "string", "placer": "string", "overall_ms": "double", "predicted_ms": "double"},
    **{"legal": "boolean", "place_ms": "double"},
}
_TRIES = 3


def log_tables(settings: Settings, run: str, version: str, tables: Tables, source: str) -> None:
    """Log a dataset version as what a run trained on; its digest is the version."""
    profile = {"num_tables": len(tables), "num_lookups": int(tables.lookups.sum())}
    uri = str(hive_folder(settings.lake_root / "tables", dataset_version=version))
    _log_input(settings, run, _dataset(source, version, {"uri": uri}, _TABLES, profile), "training")


def log_tasks(settings: Settings, run: str, name: str, key: str, evaluation: str, context: str = "evaluation") -> None:
    """Log tasks as what a run was measured on.

    Args:
        key: of the tasks; the dataset's digest.
        evaluation: key of the measurements' rows in the lake.
    """
    sql = f"select * from evaluations where run_key = '{evaluation}'"
    source = {"uri": str(settings.lake_root / "evaluations"), "sql": sql}
    _log_input(settings, run, _dataset(name[:500], key[:36], source, _EVALUATIONS, {"evaluation": evaluation}), context)


def _dataset(
    name: str, digest: str, source: Mapping[str, str], columns: Mapping[str, str], profile: Mapping[str, Any]
) -> Dataset:
    schema = Schema([ColSpec(kind, column) for column, kind in columns.items()])
    return Dataset(
        name=name,
        digest=digest,
        source_type="local" if "://" not in source["uri"] else source["uri"].partition("://")[0],
        source=json.dumps(source),
        schema=json.dumps({"mlflow_colspec": schema.to_dict()}),
        profile=json.dumps(profile),
    )


def _log_input(settings: Settings, run: str, dataset: Dataset, context: str) -> None:
    """Log an input of a run; MLflow may refuse one of two runs that bring the same new dataset at once, so it tries again."""
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])]
    for left in reversed(range(_TRIES)):
        try:
            client(settings).log_inputs(run, inputs)
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST" or not left:  # MLflow's code for a database error
                raise
        else:
            return
