"""Sources of tables and of their lookups; where these are stored is `storage/`'s business.

identity         what a source is known by, however it is spelt
sizes            sizes of tables alone, where a source lists them
opening          picks the reader for a source: bundled workload, file, or folder
source           what every reader returns: a `Workload`
dlrm, criteo     readers of Meta's `.pt` and Criteo's `.tsv` files
folder           reader of a folder or bucket: a list of tables with recorded lookups
table_list       reads and checks lists of tables; `tables_file` fills in what they lack, `pooling_factors` by features
synthetic, zipf  Zipf lookups for the tables of a list
meta             Meta's data sets, generated from `meta_population` and `meta_statistics`
functions        a person's own functions as sources; `dreamshard.torchrec` reads the models that they return
lookups          lookups in memory and as Parquet
table_statistics features of a table from one batch of lookups; a dataset's version
"""

from dreamshard.workloads.config import META_WORKLOADS, WorkloadConfig, bundled_lists, bundled_workloads
from dreamshard.workloads.lookups import (
    LookupFiles,
    Lookups,
    LookupSource,
    WorkloadTable,
    read_lookups,
    write_lookups,
)
from dreamshard.workloads.opening import change_token, open_workload
from dreamshard.workloads.source import Workload
from dreamshard.workloads.table_statistics import dataset_version, statistics
from dreamshard.workloads.tables_file import read_tables

__all__ = [
    "META_WORKLOADS",
    "LookupFiles",
    "LookupSource",
    "Lookups",
    "Workload",
    "WorkloadConfig",
    "WorkloadTable",
    "bundled_lists",
    "bundled_workloads",
    "change_token",
    "dataset_version",
    "open_workload",
    "read_lookups",
    "read_tables",
    "statistics",
    "write_lookups",
]
