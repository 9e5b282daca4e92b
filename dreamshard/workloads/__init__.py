"""Sources of tables and of their lookups; where these are stored is `storage/`'s business.

sources        opens a source by its name: bundled workload, file, folder or bucket; calls a person's own function
workload       which tables to ingest, and the `Workload` that every source gives; generated lookups
table_list     the tables of a list or model: read, checked and completed; types, optimizers, features, modules
task_sampling  tables split into training and held-out tables, and tasks drawn from either
lookups        lookups in memory and as Parquet, their statistics; readers of Meta's and MLPerf's files and Criteo's logs
"""

from dreamshard.workloads.lookups import (
    LookupFiles,
    Lookups,
    LookupSource,
    check_indices,
    dataset_version,
    index_dtype,
    read_lookups,
    statistics,
    write_lookups,
)
from dreamshard.workloads.sources import call, change_token, is_function, known_as, open_workload
from dreamshard.workloads.table_list import ModelTables, check_records, list_tables, model_tables
from dreamshard.workloads.workload import (
    META_WORKLOADS,
    Workload,
    WorkloadConfig,
    bundled_lists,
    list_file,
    listed_workload,
)

__all__ = [
    "META_WORKLOADS",
    "LookupFiles",
    "LookupSource",
    "Lookups",
    "ModelTables",
    "Workload",
    "WorkloadConfig",
    "bundled_lists",
    "call",
    "change_token",
    "check_indices",
    "check_records",
    "dataset_version",
    "index_dtype",
    "is_function",
    "known_as",
    "list_file",
    "list_tables",
    "listed_workload",
    "model_tables",
    "open_workload",
    "read_lookups",
    "statistics",
    "write_lookups",
]
