"""What the lake's files and the catalog's views hold: names, types, and the unit in the name of every column.

A measurement is stored as one row per device, so that a sample and its devices appear in one atomic rename: the row of
device 0 also carries what is true of the whole placement. `COST_SAMPLES` and `DEVICE_COSTS` are the two views of it.
"""

import pyarrow as pa

from dreamshard.costs import PHASES
from dreamshard.tables import NUM_BINS

BINS = tuple(f"bin_{j}" for j in range(NUM_BINS))
PHASE_COLUMNS = tuple(f"{phase}_ms" for phase in PHASES)

_TEXT, _COUNT, _MS = pa.string(), pa.int64(), pa.float64()
_TEXTS, _DEVICES = pa.list_(pa.string()), pa.list_(pa.int32())
_TIME = pa.timestamp("us")  # UTC; without a zone, which DuckDB would need one more package to hand to Python

LOOKUPS = pa.schema([("indices", pa.list_(pa.int32()))])
"""One row per training sample: the rows it looks up; int64 where the table needs it. See `workloads.lookups`."""

TABLES = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("position", pa.int32()),  # of the table in its dataset
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
"""One row per table of a source that was ingested: what it came to, by its fingerprint."""

SOURCES = pa.schema([("name", _TEXT), ("fingerprint", _TEXT), ("created_at", _TIME)])
"""One row per table of a source, in the source's order."""

TASKS = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("split", _TEXT),  # train or test
        ("task_set", _TEXT),  # key of the tasks drawn together
        ("position", pa.int32()),
        ("task", _TEXT),
        ("table_names", _TEXTS),
        ("num_tables", pa.int32()),
        ("num_devices", pa.int32()),
        ("memory_bytes", _COUNT),  # of each device
        ("precision", _TEXT),
        ("optimizer", _TEXT),
        ("seed", _COUNT),
        ("created_at", _TIME),
    ]
)
"""One row per placement task."""

_MEASURED = [
    ("sample_id", _TEXT),
    ("run_key", _TEXT),  # of the training, or of the evaluation
    ("iteration", pa.int32()),  # of the training, from 1; 0 for what an evaluation measured
    ("dataset_version", _TEXT),
    ("testbed", _TEXT),
    ("hardware", _TEXT),
    ("task", _TEXT),
]
_DEVICE = [
    ("device", pa.int32()),
    *((name, pa.float32()) for name in PHASE_COLUMNS),
    ("device_ms", pa.float32()),  # sum of the phases
    ("memory_bytes", _COUNT),  # of the tables on the device
    ("num_tables", pa.int32()),
    ("sum_dim", _COUNT),
    ("single_table", _TEXT),  # the table's name where the device holds exactly one: what a table costs by itself
    ("shard_tables", _TEXTS),  # every table on the device
]
_SAMPLE = [
    ("clock", _TEXT),
    ("batch_size", _COUNT),
    ("precision", _TEXT),
    ("optimizer", _TEXT),
    ("num_devices", pa.int32()),
    ("capacity_bytes", _COUNT),  # of each device
    ("overall_ms", _MS),  # null, as all milliseconds of the sample, where a shard did not fit
    ("spread_ms", _MS),
    ("repeats", pa.int32()),
    ("infeasible_device", pa.int32()),  # whose shard did not fit; null where all did
    ("asked_bytes", _COUNT),  # by that shard
    ("free_bytes", _COUNT),  # on its device
    ("table_names", _TEXTS),
    ("placement", _DEVICES),  # device of each of table_names
    ("versions", _TEXT),  # JSON object: library to version
    ("created_at", _TIME),
]

MEASUREMENTS = pa.schema([*_MEASURED, *_DEVICE, *_SAMPLE])
"""What a file of measurements holds: one row per device; null in `table_names` and `placement` but on device 0."""

DEVICE_COSTS = pa.schema([*_MEASURED, *_DEVICE])
"""One row per device of a sample."""

COST_SAMPLES = pa.schema([*_MEASURED, *((name, kind) for name, kind in _SAMPLE)])
"""One row per placement measured."""

EVALUATIONS = pa.schema(
    [
        ("evaluation_id", _TEXT),
        ("run_key", _TEXT),
        ("dataset_version", _TEXT),
        ("testbed", _TEXT),
        ("hardware", _TEXT),
        ("placer", _TEXT),
        ("model_version", _TEXT),  # null where no registered model was measured
        ("task", _TEXT),
        ("num_devices", pa.int32()),
        ("overall_ms", _MS),  # mean over the repeats; null where the placement did not fit
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
        ("key", _TEXT),  # content of everything the costs depend on
        ("tables", _TEXT),  # content of the shard's tables
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
"""One row per shard measured by itself, for testbeds that measure shard by shard."""

PLACEMENTS = pa.schema(
    [
        ("origin", _TEXT),  # cost_sample or evaluation
        ("origin_id", _TEXT),
        ("run_key", _TEXT),
        ("dataset_version", _TEXT),
        ("testbed", _TEXT),
        ("hardware", _TEXT),
        ("task", _TEXT),
        ("placer", _TEXT),  # of an evaluation; null for placements drawn while training
        ("num_devices", pa.int32()),
        ("table_name", _TEXT),
        ("device", pa.int32()),
    ]
)
"""One row per table placed; a view only."""
