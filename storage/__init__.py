"""What is kept: Parquet and DuckDB (`lake`), MLflow (`mlflow_store`) and records of runs (`run_records`), in one `store`.

`from storage import load` gives what is kept as data frames, for notebooks.
"""
