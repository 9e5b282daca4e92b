"""Storage: Parquet and DuckDB (`lake`), MLflow (`mlflow_store`) and records of runs (`run_records`), in one `store`.

`from storage import notebook` gives them as data frames.
"""
