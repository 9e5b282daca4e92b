"""How MLflow's server is started: its command and its environment. Who starts it, and when, is the flows' business."""

import sys

from storage.settings import QUIET, Settings


def command(settings: Settings, port: int, host: str = "127.0.0.1") -> list[str]:
    """The command that serves runs, versions and files, in two processes; `environment` goes with it.

    On the home's own database new experiments keep their files in the home, so that `dreamshard run` without a server
    reads them as well. On any other database they belong to a team: all files then go through the server.

    Args:
        port: to listen on.
        host: interface to listen on.
    """
    own = settings.tracking_uri.startswith("sqlite")
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *(("--default-artifact-root", settings.artifact_root) if own else ()),
        *("--artifacts-destination", settings.artifact_root),
        "--serve-artifacts",
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]


def environment(settings: Settings) -> dict[str, str]:
    """Where the server keeps runs and versions: in the environment, since everybody can read a command's password.

    Raises:
        ValueError: the tracking URI is the address of a server.
    """
    store = settings.tracking_uri
    if store.startswith("http"):
        raise ValueError(f"MLFLOW_TRACKING_URI is {store}, a server that runs already; use it as it is")
    return {**QUIET, "MLFLOW_BACKEND_STORE_URI": store}
