"""The environment of all tests and trials: one thread, no telemetry, nothing that the caller's environment points at."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # read when Prefect is imported; its default is 20
}
"""Variables to set."""

CALLERS = (
    *("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DREAMSHARD_HOME", "DREAMSHARD_STORE", "DREAMSHARD_ARTIFACTS"),
    *("DREAMSHARD_SOURCE", "DREAMSHARD_HOST", "PREFECT_LOCAL_STORAGE_PATH"),
    *("AWS_PROFILE", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"),
)
"""Variables of the caller to remove."""
