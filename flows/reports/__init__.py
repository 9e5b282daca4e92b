"""Output of a run: evaluation reports, plots, pages, and logs in MLflow."""
