"""Records of runs besides MLflow: checkpoints, lineage, effort."""
