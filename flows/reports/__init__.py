"""Output of a run: evaluation reports, pages, and logs in MLflow."""
