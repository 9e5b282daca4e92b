"""An S3 server for tests, on a free loopback port, which keeps everything in memory."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.ports import free_port


@contextmanager
def s3_server(log: Path) -> Iterator[Mapping[str, str]]:
    """Start an S3 server with the bucket `team`; yields the environment variables of its users."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ACCESS_KEY_ID": "team",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": address,
    }
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

    names = ("region_name", "AWS_DEFAULT_REGION"), ("aws_access_key_id",) * 2, ("aws_secret_access_key",) * 2
    given = {name: environment[of.upper()] for name, of in names}
    patient = Config(retries={"total_max_attempts": 12, "mode": "standard"})
    boto3.client("s3", endpoint_url=address, config=patient, **given).create_bucket(Bucket="team")
