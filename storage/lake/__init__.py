"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations; `catalog` queries them with DuckDB.

What reads tables and samples loads torch, which takes seconds, so it is imported when it is asked for: queries do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.lake.exchange_samples import read_exchanges, write_exchanges
    from storage.lake.ingested import Ingested, keep_ingested, keep_source, known_tables, read_source
    from storage.lake.lake import EVALUATION, Lake
    from storage.lake.sample_buffer import collecting
    from storage.lake.shard_cost_cache import LakeShardCache
    from storage.lake.table_splits import has_table_split, read_table_split, write_table_split
else:
    _MODULES = {
        **dict.fromkeys(("read_exchanges", "write_exchanges"), "exchange_samples"),
        **dict.fromkeys(("Ingested", "keep_ingested", "keep_source", "known_tables", "read_source"), "ingested"),
        **dict.fromkeys(("EVALUATION", "Lake"), "lake"),
        "collecting": "sample_buffer",
        "LakeShardCache": "shard_cost_cache",
        **dict.fromkeys(("has_table_split", "read_table_split", "write_table_split"), "table_splits"),
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


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
