"""Where things rest: Parquet (`lake`), DuckDB (`catalog`) and MLflow (`registry`), all under one home (`settings`)."""
