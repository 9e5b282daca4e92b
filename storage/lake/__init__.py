"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations; `catalog` queries them with DuckDB."""

import importlib

from storage.lake.ingested import Ingested, keep_ingested, keep_source, known_tables, read_source
from storage.lake.lake import EVALUATION, Lake
from storage.lake.sample_buffer import collecting
from storage.lake.shard_cost_cache import LakeShardCache
from storage.lake.table_splits import has_table_split, read_table_split, write_table_split

__all__ = [
    "EVALUATION",
    "Ingested",
    "Lake",
    "LakeShardCache",
    "collecting",
    "has_table_split",
    "home_lake",
    "keep_ingested",
    "keep_source",
    "known_tables",
    "read_source",
    "read_table_split",
    "write_table_split",
]


def home_lake() -> Lake:
    """For callers that do not pass a store yet."""
    lake: Lake = importlib.import_module("storage.store").open_store().lake
    return lake
