"""What runs keep about themselves beside MLflow: checkpoints, lineage, effort."""
