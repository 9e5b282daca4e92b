"""How MLflow's server is started: its command and its environment. Who starts it, and when, is the flows' business."""

import socket
import sys
from collections.abc import Mapping

import psutil

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


def browsers(host: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Under which names browsers may ask the server, to read and to change; it refuses all others.

    Args:
        host: that the server is reached by. One that stands for all interfaces is all names and addresses of this machine.
        port: that it listens on.
        environ: what is set there is kept.
    """
    names = dict.fromkeys(["localhost", "127.0.0.1", *(_every_name() if host == "0.0.0.0" else [host])])
    allowed = {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{name}{ports}" for name in names for ports in ("", ":*")),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in names),
    }
    return {name: environ.get(name, value) for name, value in allowed.items()}


def _every_name() -> list[str]:
    interfaces = psutil.net_if_addrs().values()
    addresses = [each.address for found in interfaces for each in found if each.family == socket.AF_INET]
    return [socket.getfqdn(), socket.gethostname(), *addresses]
