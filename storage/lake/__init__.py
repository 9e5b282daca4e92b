"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations, and DuckDB over them."""

import importlib

from storage.lake.lake import Lake

__all__ = ["Lake", "home_lake"]


def home_lake() -> Lake:
    """For callers that do not pass a store yet."""
    lake: Lake = importlib.import_module("storage.store").open_store().lake
    return lake
