"""What holds for every test: shapes are checked, one thread per process, no telemetry, nothing of the caller's home."""

import os
import tempfile

from jaxtyping import install_import_hook

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # read when Prefect is imported; 20 is its own
        "PREFECT_HOME": tempfile.mkdtemp(prefix="dreamshard-tests-"),
    }
)
for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DREAMSHARD_HOME"):
    os.environ.pop(name, None)

install_import_hook("dreamshard", "beartype.beartype")

import torch  # noqa: E402 - after the hook, before anything imports dreamshard

torch.set_num_threads(1)
