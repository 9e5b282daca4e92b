"""What a run shows: evaluation reports, plots, pages, and what is logged in MLflow."""
