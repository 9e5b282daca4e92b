"""Where things rest: Parquet, DuckDB and MLflow."""
