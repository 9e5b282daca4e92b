"""Set up every test: checked shapes, one thread per process, no telemetry, nothing from the caller's environment."""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

import pytest
from jaxtyping import install_import_hook

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # read when Prefect is imported; its default is 20
        "PREFECT_HOME": tempfile.mkdtemp(prefix="dreamshard-tests-"),
    }
)
for name in (
    *("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DREAMSHARD_HOME", "DREAMSHARD_STORE", "DREAMSHARD_ARTIFACTS"),
    *("DREAMSHARD_SOURCE", "DREAMSHARD_HOST"),
    *("AWS_PROFILE", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"),
):
    os.environ.pop(name, None)

if importlib.util.find_spec("hypothesis") is not None:  # a GPU machine without network access may lack the test tools
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)  # how long an example takes says how busy the machine is
    settings.load_profile("any machine")
if importlib.util.find_spec("beartype") is not None:
    install_import_hook("dreamshard", "beartype.beartype")

import torch  # noqa: E402 - after the hook, before anything imports dreamshard

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test on the S3 server as one that starts a server."""
    for item in items:
        if "s3_environment" in getattr(item, "fixturenames", ()):
            item.add_marker("server")


@pytest.fixture(scope="session")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Start an S3 server with the bucket `team`; yields the environment variables of its users."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ACCESS_KEY_ID": "team",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": address,
    }
    log = tmp_path_factory.mktemp("s3") / "server.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        _make_bucket(address, environment)
        yield environment
    finally:
        server.kill()  # it keeps everything in memory
        server.wait()


def _make_bucket(address: str, environment: Mapping[str, str]) -> None:
    """Make the bucket; botocore retries until the server listens."""
    import boto3
    from botocore.config import Config

    boto3.client(
        "s3",
        endpoint_url=address,
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id="team",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 12, "mode": "standard"}),
    ).create_bucket(Bucket="team")
