"""The lake: Parquet datasets of tables, tasks, cost samples and evaluations, and DuckDB over them."""

from storage.lake.lake import Lake
from storage.settings import Settings

__all__ = ["Lake", "home_lake"]


def home_lake() -> Lake:
    """The lake of the home."""
    return Lake(Settings.load().lake_root)
