"""Command line and environment of MLflow's server; `flows.servers` starts it."""

import socket
import sys
from collections.abc import Mapping

import psutil

from storage.settings import QUIET, Settings


def command(settings: Settings, port: int, host: str = "127.0.0.1") -> list[str]:
    """The command that serves runs, versions and files; needs `environment`.

    With the home's own database, experiments keep their files in the home, so that `dreamshard run` reads them without a
    server. Any other database belongs to a team, and all files go through the server.
    """
    own = settings.tracking_uri.startswith("sqlite")
    return [
        *(sys.executable, "-m", "storage.mlflow_store.server_process"),
        *(("--default-artifact-root", settings.artifact_root) if own else ()),
        *("--artifacts-destination", settings.artifact_root),
        *("--host", host, "--port", str(port)),
    ]


def environment(settings: Settings) -> dict[str, str]:
    """The server's database; passed by environment, since every user of the machine can read a password in a command.

    Raises:
        ValueError: the tracking URI is the address of a server.
    """
    if settings.tracking_uri.startswith("http"):
        raise ValueError(f"MLFLOW_TRACKING_URI is {settings.tracking_uri}, a server that runs already; use it as it is")
    return {**QUIET, "MLFLOW_BACKEND_STORE_URI": settings.tracking_uri}


def browsers(host: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with the host names that browsers may use; the server refuses all others.

    Args:
        host: host name of the server; 0.0.0.0 allows all names and addresses of this machine.
        port: port of the server.
        environ: variables set here are kept.
    """
    names = dict.fromkeys(["localhost", "127.0.0.1", *(_machine_names() if host == "0.0.0.0" else [host])])
    allowed = {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{name}{ports}" for name in names for ports in ("", ":*")),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in names),
    }
    return {name: environ.get(name, value) for name, value in allowed.items()}


def _machine_names() -> list[str]:
    interfaces = psutil.net_if_addrs().values()
    addresses = [entry.address for entries in interfaces for entry in entries if entry.family == socket.AF_INET]
    return [socket.getfqdn(), socket.gethostname(), *addresses]
