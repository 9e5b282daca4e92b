"""Sources of tables and of their lookups; where these are stored is `storage/`'s business.

workload         which tables to ingest, and the `Workload` that every reader returns
addresses        where a source is, and the one spelling by which it is known
opening          opens a source by its name: bundled workload, file, folder or bucket; Zipf lookups for lists
dlrm, criteo     readers of recorded lookups: Meta's and MLPerf's files, Criteo's logs
table_list       lists of tables: read, checked, and completed
model_tables     the tables of a model or list: types, optimizers, features, modules
dataset_diff     what changed between two data sets
meta             Meta's data sets, generated to fit what Meta published
functions        a person's own functions as sources; `dreamshard.torchrec` reads the models that they return
lookups          lookups in memory and as Parquet, their statistics, and a data set's version
drift            a table after its features have drifted
zipf             the law behind generated lookups
"""

from dreamshard.workloads.addresses import known_as
from dreamshard.workloads.functions import call, is_function
from dreamshard.workloads.lookups import (
    LookupFiles,
    Lookups,
    LookupSource,
    WorkloadTable,
    dataset_version,
    read_lookups,
    statistics,
    write_lookups,
)
from dreamshard.workloads.opening import change_token, open_workload
from dreamshard.workloads.table_list import ModelTable, fill_missing_columns, list_tables, read_tables
from dreamshard.workloads.workload import (
    META_WORKLOADS,
    Workload,
    WorkloadConfig,
    bundled_lists,
    bundled_workloads,
    list_file,
)

__all__ = [
    "META_WORKLOADS",
    "LookupFiles",
    "LookupSource",
    "Lookups",
    "ModelTable",
    "Workload",
    "WorkloadConfig",
    "WorkloadTable",
    "bundled_lists",
    "bundled_workloads",
    "call",
    "change_token",
    "dataset_version",
    "fill_missing_columns",
    "is_function",
    "known_as",
    "list_file",
    "list_tables",
    "open_workload",
    "read_lookups",
    "read_tables",
    "statistics",
    "write_lookups",
]
