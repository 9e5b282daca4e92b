-- Run once, when PostgreSQL starts for the first time: Prefect's database is there, MLflow's is not.
-- Two databases, because both programs keep a table of the same name that says which version their schema has.
create database mlflow;
