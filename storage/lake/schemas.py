"""Columns of the lake's files and of the catalog's views; column names carry the unit.

A measurement is stored as one row per device, so that a sample and its devices appear in one atomic rename; the row of
device 0 also carries the columns of the whole placement. `COST_SAMPLES` and `DEVICE_COSTS` are the two views of it.
"""

import pyarrow as pa

from dreamshard.costs import PHASES
from dreamshard.tables import NUM_BINS

BINS = tuple(f"bin_{j}" for j in range(NUM_BINS))
PHASE_COLUMNS = tuple(f"{phase}_ms" for phase in PHASES)

_TEXT, _COUNT, _MS = pa.string(), pa.int64(), pa.float64()
_TEXTS, _DEVICES = pa.list_(pa.string()), pa.list_(pa.int32())
_TIME = pa.timestamp("us")  # UTC without a time zone: DuckDB needs another package to return zones to Python

TABLES = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("position", pa.int32()),  # index of the table in its dataset
        ("name", _TEXT),
        ("rows", _COUNT),
        ("dim", pa.int32()),
        ("pooling_factor", pa.float64()),  # mean lookups per sample
        *((name, pa.float64()) for name in BINS),  # share of the distinct rows
        ("lookups", _COUNT),
        ("unique_rows", _COUNT),
        ("source", _TEXT),
        ("lookups_file", _TEXT),  # below the lake's root
        ("created_at", _TIME),
    ]
)
"""One row per table and dataset version."""

INGESTED = pa.schema(
    [
        ("fingerprint", _TEXT),
        *(field for field in TABLES if field.name not in ("dataset_version", "position", "source")),
    ]
)
"""One row per ingested table: its fingerprint and its statistics."""

SOURCES = pa.schema([("name", _TEXT), ("fingerprint", _TEXT), ("created_at", _TIME)])
"""One row per table of a source, in the source's order."""

TASKS = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("split", _TEXT),  # train or test
        ("task_set", _TEXT),  # key of the set of tasks
        ("position", pa.int32()),
        ("task", _TEXT),
        ("table_names", _TEXTS),
        ("num_tables", pa.int32()),
        ("num_devices", pa.int32()),
        ("memory_bytes", _COUNT),  # room on each device
        ("precision", _TEXT),
        ("optimizer", _TEXT),
        ("seed", _COUNT),
        ("created_at", _TIME),
    ]
)
"""One row per placement task."""

_MEASURED = [
    ("sample_id", _TEXT),
    ("run_key", _TEXT),  # key of the training or evaluation
    ("iteration", pa.int32()),  # of the training, from 1; 0 if an evaluation measured it
    ("dataset_version", _TEXT),
    ("testbed", _TEXT),
    ("hardware", _TEXT),
    ("task", _TEXT),
]
_DEVICE = [
    ("device", pa.int32()),
    *((name, pa.float32()) for name in PHASE_COLUMNS),
    ("device_ms", pa.float32()),  # sum of the phases
    ("memory_bytes", _COUNT),  # total of the tables on the device
    ("num_tables", pa.int32()),
    ("sum_dim", _COUNT),
    ("single_table", _TEXT),  # the table's name if the device holds exactly one: the cost of a single table
    ("shard_tables", _TEXTS),  # every table on the device
]
_SAMPLE = [
    ("clock", _TEXT),
    ("batch_size", _COUNT),
    ("precision", _TEXT),
    ("optimizer", _TEXT),
    ("num_devices", pa.int32()),
    ("capacity_bytes", _COUNT),  # room on each device
    ("overall_ms", _MS),  # null, like all other times of the sample, if a shard did not fit
    ("spread_ms", _MS),
    ("repeats", pa.int32()),
    ("infeasible_device", pa.int32()),  # device whose shard did not fit; null if all did
    ("asked_bytes", _COUNT),  # size of that shard
    ("free_bytes", _COUNT),  # room left on its device
    ("table_names", _TEXTS),
    ("placement", _DEVICES),  # device of each table in table_names
    ("versions", _TEXT),  # JSON object: library to version
    ("created_at", _TIME),
]

MEASUREMENTS = pa.schema([*_MEASURED, *_DEVICE, *_SAMPLE])
"""One row per device, as in the files; `table_names` and `placement` are null except on device 0."""

DEVICE_COSTS = pa.schema([*_MEASURED, *_DEVICE])
"""One row per device of a sample."""

COST_SAMPLES = pa.schema([*_MEASURED, *_SAMPLE])
"""One row per measured placement."""

EVALUATIONS = pa.schema(
    [
        ("evaluation_id", _TEXT),
        ("run_key", _TEXT),
        ("dataset_version", _TEXT),
        ("testbed", _TEXT),
        ("hardware", _TEXT),
        ("placer", _TEXT),
        ("model_version", _TEXT),  # null if the placer is not a registered model
        ("task", _TEXT),
        ("num_devices", pa.int32()),
        ("overall_ms", _MS),  # mean over the repeats; null if the placement did not fit
        ("predicted_ms", _MS),
        ("legal", pa.bool_()),
        ("place_ms", _MS),
        ("table_names", _TEXTS),
        ("placement", _DEVICES),
        ("created_at", _TIME),
    ]
)
"""One row per placer and test task."""

SHARD_COSTS = pa.schema(
    [
        ("key", _TEXT),  # hash of everything the costs depend on
        ("tables", _TEXT),  # hash of the shard's tables
        ("hardware", _TEXT),
        ("versions", _TEXT),  # JSON object: library to version
        ("precision", _TEXT),
        ("optimizer", _TEXT),
        ("batch_size", _COUNT),
        ("num_tables", pa.int32()),
        ("sum_dim", _COUNT),
        ("memory_bytes", _COUNT),
        ("forward_ms", _MS),
        ("backward_ms", _MS),
        ("spread_ms", _MS),
        ("repeats", pa.int32()),
        ("clock", _TEXT),
        ("created_at", _TIME),
    ]
)
"""One row per shard measured by itself."""
