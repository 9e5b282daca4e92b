"""MLflow: runs, the registry of placer versions, and the model that it serves."""
