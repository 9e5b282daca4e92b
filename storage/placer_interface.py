"""What a version says of its requests and answers, and the training tables that travel with it.

The model itself is `placer_model`, which runs where nothing of the project is installed.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.tables import Tables
from storage import schemas
from storage.settings import quiet_environment

quiet_environment()  # MLflow decides on its telemetry when it is first imported

import pandas as pd  # type: ignore[import-untyped]  # noqa: E402
from mlflow.models import ModelSignature  # noqa: E402
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec  # noqa: E402


def write_pool(path: Path, pool: Tables) -> Path:
    """Write the training tables as `read_tables` reads them, beside the placer; returns `path`."""
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


def signature() -> ModelSignature:
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


EXAMPLE = (
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
"""A request that MLflow shows and checks the signature with."""
