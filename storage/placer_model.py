"""The placer as MLflow serves it: this file is the model's code (models-from-code), its weights are safetensors.

Belongs here: turning a request into a placement task and the placement into an answer. It imports `dreamshard` alone,
which travels with the version, so that it can be served where nothing of the project is installed.

    . .venv/bin/activate     # mlflow calls uvicorn by name, so it must be on PATH
    export MLFLOW_TRACKING_URI=sqlite:///$PWD/.dreamshard/mlflow.db
    mlflow models serve -m models:/dreamshard@champion --env-manager local --port 5001
    curl 127.0.0.1:5001/invocations -H 'Content-Type: application/json' -d '{
        "dataframe_records": [{"name": "users", "rows": 1000000, "dim": 64, "pooling_factor": 12.5}, ...],
        "params": {"num_devices": 8, "memory_gb": 40}}'
    {"predictions": [{"table": "users", "device": 3, "column_start": 0, "column_end": 64, "device_ms": 1.8,
        "overall_ms": 2.1}, ...]}

`device_ms` is the predicted time of the table's device, `overall_ms` that of the slowest. What is wrong in a request is
answered with 400 and a message that names the field.
"""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from dreamshard.model_files import load_placer
from dreamshard.plan import make_plan
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.csv import read_tables


class PlacerModel(PythonModel):
    """A trained placer behind MLflow's one method."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the placer, and the pool whose means fill in the bins that a request lacks."""
        self.placer = load_placer(Path(context.artifacts["placer"]))
        pool = context.artifacts.get("pool")
        self.pool = read_tables(pool).tables if pool else None

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Place the tables of a request.

        Args:
            model_input: a table per row: name, rows, dim, pooling_factor, optionally bin_0..bin_16.
            params: num_devices and memory_gb (GiB of each device), which must be given; budget_ms for the search, below
                0 for the placer's own; precision (fp32, fp16) and optimizer (sgd, rowwise_adagrad).

        Returns:
            A row per table, or per shard of one that is split by columns: table, device, column_start, column_end,
            device_ms, overall_ms.

        Raises:
            MlflowException: a field is wrong or no placement fits; the server answers 400.
        """
        try:
            task = self._task(model_input, params or {})
            budget_ms = (params or {}).get("budget_ms", -1.0)
            placement = self.placer.place(task, budget_ms if budget_ms >= 0 else None)
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        predicted = self.placer.predict(task, placement)
        shards = make_plan(task, placement, "dreamshard", predicted).shards
        device_ms = predicted.device_ms().tolist()
        return pd.DataFrame(
            {
                "table": [shard.table for shard in shards],
                "device": [shard.device for shard in shards],
                "column_start": [shard.column_start for shard in shards],
                "column_end": [shard.column_end for shard in shards],
                "device_ms": [device_ms[shard.device] for shard in shards],
                "overall_ms": max(device_ms),
            }
        )

    def _task(self, frame: pd.DataFrame, params: dict[str, Any]) -> PlacementTask:
        num_devices, memory_gb = int(params.get("num_devices", 0)), float(params.get("memory_gb", 0))
        if num_devices < 1:
            raise ValueError(f"num_devices is {num_devices}; give in params how many devices there are, at least 1")
        if not 0 < memory_gb < float("inf"):
            raise ValueError(f"memory_gb is {memory_gb}; give in params the GiB that each device has for tables")
        precision, optimizer = params.get("precision", "fp32"), params.get("optimizer", "sgd")
        if precision not in BYTES_PER_WEIGHT:
            raise ValueError(f"precision is {precision!r}; give one of {list(BYTES_PER_WEIGHT)}")
        if optimizer not in BYTES_PER_ROW_STATE:
            raise ValueError(f"optimizer is {optimizer!r}; give one of {list(BYTES_PER_ROW_STATE)}")
        if frame.empty:
            raise ValueError("the request has no tables, so there is nothing to place; give one row per table")
        tables = _tables(frame, self.pool)
        return PlacementTask(tables, num_devices, round(memory_gb * 2**30), precision, optimizer, "the request")


def _tables(frame: pd.DataFrame, pool: Tables | None) -> Tables:
    """The tables of a request, checked and filled in by the same reader as files are."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tables.parquet"
        frame.to_parquet(file, index=False)
        try:
            return read_tables(file, pool).tables
        except ValueError as error:
            raise ValueError(str(error).replace(str(file), "the request")) from error


set_model(PlacerModel())
