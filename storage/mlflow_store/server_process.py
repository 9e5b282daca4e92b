"""MLflow's server in one process, and behind a login if one is set.

    python -m storage.mlflow_store.server_process --host 127.0.0.1 --port 5000 --artifacts-destination FOLDER

`mlflow server` checks the database, starts a second process that serves, and stays in memory (275 MB) until that one ends.
Here the process that checks is the one that serves: the same application on the same server, ready in half the time.
MLflow's own logins (`--app-name basic-auth`) need another package and a second database of users and rights. A team that
shares one home shares one login, so a check in front of the application is enough; Prefect does the same.
"""

import argparse
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from storage.login import guarded, of_server
from storage.mlflow_store.model_training_page import opening_as_model_training

HEALTH = ("/health", "/version")
ENDING = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str]) -> None:
    """Serve the database `MLFLOW_BACKEND_STORE_URI` until a signal ends this process; `DREAMSHARD_LOGIN` is the login."""
    parser = argparse.ArgumentParser(description="MLflow's server in one process")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--default-artifact-root", help="where new experiments keep files; omitted: behind the server")
    parser.add_argument(
        "--artifacts-destination", required=True, help="where files that go through the server are kept"
    )
    given = parser.parse_args(arguments)
    login = of_server(os.environ)
    import uvicorn

    with _uninterrupted():
        app = application(
            os.environ["MLFLOW_BACKEND_STORE_URI"], given.default_artifact_root, given.artifacts_destination
        )
    uvicorn.run(guarded(app, login, HEALTH) if login else app, host=given.host, port=given.port, access_log=False)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """End by a signal only after the block: in SQLite, half a migration would be a database that no server can use."""
    received: list[int] = []
    former = {each: signal.signal(each, lambda number, _: received.append(number)) for each in ENDING}
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
    if received:
        raise SystemExit(0)


def application(database: str, artifact_root: str | None, artifacts_destination: str) -> Any:
    """MLflow's ASGI application, with its tables created if the database is new; one per process.

    Args:
        database: SQLAlchemy's address.
        artifact_root: where new experiments keep their files; None for behind the server.
        artifacts_destination: where the server keeps files that clients send through it.

    Raises:
        mlflow.exceptions.MlflowException: the database does not answer, or is of another version of MLflow.
        ValueError: the database is a file that cannot be created or upgraded.
    """
    import uvicorn  # noqa: F401 - MLflow checks host names only where a server is imported before it
    from mlflow.environment_variables import _MLFLOW_SERVER_BOOT_ID, _MLFLOW_SGI_NAME
    from mlflow.server import constants, handlers
    from mlflow.store.tracking import DEFAULT_ARTIFACTS_URI

    from storage.mlflow_store.database import prepare

    root = artifact_root or DEFAULT_ARTIFACTS_URI
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts_destination,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        _MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        _MLFLOW_SGI_NAME.name: "uvicorn",
    }
    prepare(database, root)
    handlers.initialize_backend_stores(database, database, root)
    from mlflow.server.fastapi_app import app

    return opening_as_model_training(app)


if __name__ == "__main__":
    main(sys.argv[1:])
