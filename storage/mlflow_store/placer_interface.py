"""The example request and the training tables that are stored with every version; `placer_model` is the model itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.tables import Tables
from storage.lake import schemas

EXAMPLE = [
    {
        "num_devices": 2,
        "memory_gb": 1.0,
        "tables": [
            {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.0},
            {"name": "items", "rows": 200_000, "dim": 64, "pooling_factor": 12.5},
            {"name": "words", "rows": 50_000, "dim": 32, "pooling_factor": 30.0},
        ],
    }
]
"""An example request, which MLflow stores with every version and `dreamshard serve` prints."""


def write_pool(path: Path, pool: Tables) -> Path:
    """Write the training tables in the format of `read_tables`; returns `path`."""
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
