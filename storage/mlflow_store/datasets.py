"""Datasets as inputs of MLflow's runs: the tables that a run was trained on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput
from mlflow.exceptions import MlflowException
from mlflow.types import ColSpec, Schema, TensorSpec

from dreamshard.tables import Tables
from storage.filesystem import AnyPath
from storage.lake.parquet_files import partition
from storage.mlflow_store.runs import client
from storage.settings import Settings

_COLUMNS = {"name": "string", "rows": "long", "dim": "long", "pooling_factor": "double"}
_TRIES = 3


def log_dataset(
    settings: Settings, run: str, version: str, tables: Tables, source: str, context: str = "training"
) -> None:
    """Log a dataset version as an input of a run, with its origin and its use; its digest is the version."""
    profile = {"num_tables": len(tables), "num_lookups": int(tables.lookups.sum())}
    folder = partition(settings.lake_root / "tables", version)
    log_input(settings, run, make_dataset(source, version, folder, _COLUMNS, profile), context)


def make_dataset(
    name: str,
    digest: str,
    folder: AnyPath,
    columns: Mapping[str, str],
    profile: Mapping[str, Any],
    **selection: str,
) -> Dataset:
    """A dataset for MLflow.

    Args:
        folder: folder of its files.
        columns: MLflow's types by name.
        profile: facts that MLflow shows.
        selection: which rows of the files belong to it.
    """
    specs: list[ColSpec | TensorSpec] = [ColSpec(kind, column) for column, kind in columns.items()]
    return Dataset(
        name=name,
        digest=digest,
        source_type="local" if isinstance(folder, Path) else folder.protocol,
        source=json.dumps({"uri": str(folder), **selection}),
        schema=json.dumps({"mlflow_colspec": Schema(specs).to_dict()}),
        profile=json.dumps(profile),
    )


def log_input(
    settings: Settings, run: str, dataset: Dataset, context: str, models: Sequence[LoggedModelInput] = ()
) -> None:
    """Log a dataset, and models, as inputs of a run.

    MLflow adds the dataset if it does not exist. If two runs add the same new one at once, its database refuses the slower
    run, which finds the dataset when it tries again.

    Args:
        context: what the run uses the dataset for.
        models: models that the run measured on it.
    """
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])]
    for left in reversed(range(_TRIES)):
        try:
            client(settings).log_inputs(run, inputs, list(models))
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST" or not left:  # MLflow's code for a database error
                raise
        else:
            return
