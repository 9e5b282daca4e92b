"""What a run shows of itself: reports, plots, pages, and what MLflow is told."""
