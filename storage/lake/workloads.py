"""Brings all tables of a workload into the lake at once; flows do the same in parts, with retries."""

from dreamshard.tables import concatenate
from dreamshard.workloads import Workload, dataset_version, statistics
from storage.lake.lake import Lake


def keep_workload(lake: Lake, workload: Workload, source: str) -> str:
    """Write the lookups of all tables of a workload, and the data set of the tables, whose version it returns.

    Args:
        source: origin of the tables, for people.

    Raises:
        ValueError: a table's lookups are wrong.
    """
    parts = []
    for table in workload.tables():
        parts.append(statistics(table))
        lake.write_table_lookups(table, parts[-1])
    tables = concatenate(parts)
    version = dataset_version(tables)
    lake.write_dataset(tables, version, source)
    return version
