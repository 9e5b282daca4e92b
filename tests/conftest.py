"""Set up every test: checked shapes, one thread per process, no telemetry, nothing from the caller's environment."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

from tests.helpers.ports import free_port

QUIET = {
    "OMP_NUM_THREADS": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # read when Prefect is imported; its default is 20
}
CALLERS = (
    *("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DREAMSHARD_HOME", "DREAMSHARD_STORE", "DREAMSHARD_ARTIFACTS"),
    *("DREAMSHARD_SOURCE", "DREAMSHARD_HOST", "PREFECT_LOCAL_STORAGE_PATH"),
    *("AWS_PROFILE", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"),
)

os.environ.update(QUIET, PREFECT_HOME=tempfile.mkdtemp(prefix="dreamshard-tests-"))
for name in CALLERS:
    os.environ.pop(name, None)
# A job in a script's background ignores Ctrl-C, and its children would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis") is not None:  # a GPU machine without network access may lack the test tools
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)  # how long an example takes says how busy the machine is
    settings.load_profile("any machine")
if importlib.util.find_spec("beartype") is not None:
    install_import_hook("dreamshard", "beartype.beartype")

import torch  # noqa: E402 - after the hook, before anything imports dreamshard

torch.set_num_threads(1)


QUICK_FOLDERS = ("tests/dreamshard/", "tests/storage/lake/")
NOT_QUICK = {"processes", "slow", "cuda"}


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as quick every test of a quick folder that starts no process and does not compute for long."""
    for item in items:
        if "s3_environment" in getattr(item, "fixturenames", ()):
            item.add_marker("processes")
        if item.nodeid.startswith(QUICK_FOLDERS) and NOT_QUICK.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker("quick")


def pytest_unconfigure() -> None:
    """Leave no home of Prefect's in the folder of temporary files."""
    shutil.rmtree(os.environ["PREFECT_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Start an S3 server with the bucket `team`; yields the environment variables of its users."""
    import boto3
    from botocore.config import Config

    port = free_port()
    given = {"aws_access_key_id": "team", "aws_secret_access_key": "any"}
    environment = {name.upper(): value for name, value in given.items()}
    environment |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path_factory.mktemp("s3") / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        patient = Config(retries={"total_max_attempts": 12, "mode": "standard"})  # until the server listens
        given |= {"region_name": "us-east-1", "endpoint_url": environment["AWS_ENDPOINT_URL_S3"]}
        boto3.client("s3", config=patient, **given).create_bucket(Bucket="team")
        yield environment
    finally:
        server.kill()  # it keeps everything in memory
        server.wait()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without rows; making one takes seconds, copying it does not."""
    from storage.mlflow_store import runs
    from storage.settings import Settings

    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path_factory.mktemp("database"))})
    runs.client(settings)
    return settings.home / "mlflow.db"


@pytest.fixture(scope="session")
def mlflow_home(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes homes that have such a database."""

    def make() -> Path:
        home = tmp_path_factory.mktemp("home")
        shutil.copy(empty_database, home)
        return home

    return make
