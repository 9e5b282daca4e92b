"""Columns of the lake's files and of the catalog's views; column names carry the unit.

A measurement is stored as one row per device, so that a sample and its devices appear in one atomic rename; the row of
device 0 also carries the columns of the whole placement. `COST_SAMPLES` and `DEVICE_COSTS` are the two views of it.
"""

from datetime import datetime

import pyarrow as pa

from dreamshard.costs import PHASES
from dreamshard.tables import NUM_BINS

BINS = tuple(f"bin_{j}" for j in range(NUM_BINS))
PHASE_COLUMNS = tuple(f"{phase}_ms" for phase in PHASES)

Columns = list[tuple[str, pa.DataType]]

_TEXT, _INT, _COUNT, _MS = pa.string(), pa.int32(), pa.int64(), pa.float64()
_TEXTS, _DEVICES = pa.list_(_TEXT), pa.list_(_INT)
_TIME = pa.timestamp("us")  # UTC without a time zone: DuckDB needs another package to return zones to Python

LONG_AGO = datetime(1970, 1, 1)
"""When datasets were written that never count as the newest."""


def _columns(kind: pa.DataType, *names: str) -> Columns:
    """Columns of one type."""
    return [(name, kind) for name in names]


TABLES = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("position", _INT),  # index of the table in its dataset
        ("name", _TEXT),
        ("rows", _COUNT),
        ("dim", _INT),
        ("pooling_factor", pa.float64()),  # mean lookups per sample
        *_columns(pa.float64(), *BINS),  # share of the distinct rows
        *_columns(_COUNT, "lookups", "unique_rows"),
        *_columns(_TEXT, "source", "lookups_file"),  # the file's path below the lake's root
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

TASKS = pa.schema(
    [
        ("dataset_version", _TEXT),
        ("split", _TEXT),  # train, test or reference
        ("task_set", _TEXT),  # key of the set of tasks
        ("position", _INT),
        ("task", _TEXT),
        ("table_names", _TEXTS),
        *_columns(_INT, "num_tables", "num_devices"),
        ("devices_per_host", _INT),  # null for as many as the hardware has
        ("memory_bytes", _COUNT),  # room on each device
        *_columns(_TEXT, "precision", "optimizer"),
        ("seed", _COUNT),
        ("created_at", _TIME),
    ]
)
"""One row per placement task."""

_MEASURED: Columns = [
    *_columns(_TEXT, "sample_id", "run_key"),  # the run is a training or an evaluation
    ("iteration", _INT),  # of the training, from 1; 0 if an evaluation measured it
    *_columns(_TEXT, "dataset_version", "testbed", "hardware", "task"),
]
_DEVICE: Columns = [
    ("device", _INT),
    *_columns(pa.float32(), *PHASE_COLUMNS, "device_ms"),  # per phase, and their sum
    ("memory_bytes", _COUNT),  # total of the tables on the device
    ("num_tables", _INT),
    ("sum_dim", _COUNT),
    ("single_table", _TEXT),  # the table's name if the device holds exactly one: the cost of a single table
    ("shard_tables", _TEXTS),  # every table on the device
]
_SAMPLE: Columns = [
    ("clock", _TEXT),
    ("batch_size", _COUNT),
    *_columns(_TEXT, "precision", "optimizer"),
    ("num_devices", _INT),
    ("devices_per_host", _INT),  # null for as many as the hardware has
    ("capacity_bytes", _COUNT),  # room on each device
    *_columns(_MS, "overall_ms", "spread_ms"),  # null, like all times of the sample, if a shard did not fit
    ("repeats", _INT),
    ("infeasible_device", _INT),  # device whose shard did not fit; null if all did
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
        *_columns(_TEXT, "evaluation_id", "run_key", "dataset_version", "testbed", "hardware", "placer"),
        # a URI, of which the view makes model and number, also of a candidate; null if it is not a version
        ("model_version", _TEXT),
        ("training", _TEXT),  # of the candidate; null for other placers
        ("iteration", _INT),  # of that training
        ("split", _TEXT),  # heldout, or reference: the fixed tasks of a topology; the view fills in what is null
        ("task", _TEXT),
        ("num_devices", _INT),
        ("overall_ms", _MS),  # mean over the repeats; null if the placement did not fit
        ("predicted_ms", _MS),
        ("legal", pa.bool_()),
        ("place_ms", _MS),
        ("table_names", _TEXTS),
        ("placement", _DEVICES),
        ("created_at", _TIME),
    ]
)
"""One row per placer and held-out or reference task."""

VERSIONS = pa.schema(
    [
        ("model", _TEXT),  # registered model: one per algorithm and topology
        ("version", _INT),  # number within its model
        *_columns(_TEXT, "algorithm", "name", "aliases"),
        ("is_default", pa.bool_()),  # whether `champion` or a number alone is of this model
        ("created_at", _TIME),
        *_columns(_TEXT, "source", "dataset_version"),
        ("tables", _INT),  # number of tables in the dataset
        *_columns(_TEXT, "table_diff", "mode"),
        ("tables_per_task", _TEXT),  # a number, or all
        *_columns(_TEXT, "testbed", "hardware"),
        *_columns(_INT, "devices", "devices_per_host"),  # null for as many per host as the hardware has
        ("memory_gb", pa.float64()),  # room on each device
        *_columns(_TEXT, "precision", "optimizer"),
        ("batch_size", _COUNT),
        ("recipe", _TEXT),
        *_columns(_INT, "seed", "iterations", "warm_from"),  # warm_from: version whose networks it started from
        *_columns(_MS, "reference_cost_ms", "eval_overall_ms", "eval_place_ms"),
        ("prediction_error", pa.float64()),  # mean relative error on held-out placements
        *_columns(pa.float64(), "gain_over_random", "gain_over_best_baseline"),  # share of the cost that it saves
        *_columns(pa.float64(), "gain_over_best_baseline_low", "gain_over_best_baseline_high"),  # 95 % interval
        *_columns(pa.float64(), "gain_over_champion", "gain_over_champion_low", "gain_over_champion_high"),
        *_columns(_TEXT, "reason", "decided_by"),
        *_columns(_TEXT, "training", "evaluation", "reference_set"),
        ("reference_batch_size", _COUNT),
        *_columns(_TEXT, "commit", "libraries"),
        *_columns(_TEXT, "prefect_run", "mlflow_run"),
    ]
)
"""One row per registered version, as the registry was when it last changed by a command or a flow."""

TABLE_ESTIMATES = pa.schema(
    [
        *_columns(_TEXT, "dataset_version", "table_name", "lookups_file"),
        *_columns(_TEXT, "testbed", "hardware", "precision", "optimizer"),
        ("batch_size", _COUNT),
        *_columns(_MS, "forward_compute_ms", "backward_compute_ms"),
        ("training", _TEXT),  # whose cost network estimates
        ("iteration", _INT),
        ("created_at", _TIME),
    ]
)
"""One row per table of a version's dataset: its cost alone on a device, as the version's cost network estimates it."""

EXCHANGE_SAMPLES = pa.schema(
    [
        *_columns(_TEXT, "exchange_id", "links"),
        *_columns(_TEXT, "testbed", "hardware"),
        ("versions", _TEXT),  # JSON object: library to version
        *_columns(_INT, "num_devices", "devices_per_host"),  # null: as many per host as the hardware has
        ("host_devices", _INT),  # of the hardware; null if all devices share a host
        ("largest_bytes", _COUNT),  # the most that a device sends
        *_columns(_MS, "slowest_forward_ms", "slowest_backward_ms", "spread_ms"),
        ("repeats", _INT),
        ("clock", _TEXT),
        ("sent_bytes", pa.list_(_COUNT)),  # of each device, as are the two below
        *_columns(pa.list_(pa.float32()), "forward_ms", "backward_ms"),
        ("created_at", _TIME),
    ]
)
"""One row per all-to-all measured by itself."""

DATASETS = {
    "versions": VERSIONS,
    "tables": TABLES,
    "tasks": TASKS,
    "cost_samples": MEASUREMENTS,
    "exchange_samples": EXCHANGE_SAMPLES,
    "evaluations": EVALUATIONS,
    "table_estimates": TABLE_ESTIMATES,
}
"""Columns of the datasets that the catalog reads, by folder."""
