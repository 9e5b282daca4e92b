"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations; `catalog` queries them with DuckDB."""

from storage.lake.exchange_samples import read_exchanges, write_exchanges
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
    "keep_ingested",
    "keep_source",
    "known_tables",
    "read_exchanges",
    "read_source",
    "read_table_split",
    "write_exchanges",
    "write_table_split",
]
