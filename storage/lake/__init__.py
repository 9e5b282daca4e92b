"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations; `catalog` queries them with DuckDB."""

from storage.lake.lake import Lake

__all__ = ["Lake"]
