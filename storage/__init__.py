"""Storage: Parquet and DuckDB (`lake`), MLflow (`mlflow_store`) and records of runs (`run_records`), in one `store`."""
