"""Columns of the lake's datasets for the files, as `datasets.sql` declares them for DuckDB too."""

from functools import cache
from pathlib import Path

import pyarrow as pa

DECLARED = Path(__file__).with_name("datasets.sql").read_text(encoding="utf-8")
"""Creates an empty table with the columns of each dataset, in the schema `empty`."""


@cache
def datasets() -> dict[str, pa.Schema]:
    """Columns of the datasets, by the names of their folders."""
    import duckdb  # only writers and queries need it

    with duckdb.connect() as connection:
        connection.execute(DECLARED)
        names = connection.sql("select table_name from duckdb_tables()").fetchall()
        return {name: connection.table(f"empty.{name}").to_arrow_table().schema for (name,) in names}
