"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

import json
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from flows.cli import terminal
from flows.cli.command import Fields, Positive, command, open_home
from flows.forms.options import RetrainingOptions
from flows.servers.deployment import POOL, deploy as deploy_all
from storage.settings import LOCAL, quiet_environment

WORKER = ("prefect", "worker", "start", "--pool")
_SERVERS = {"PREFECT_API_URL": "http://HOST:4200/api", "MLFLOW_TRACKING_URI": "http://HOST:5000"}
"""Addresses of a team's servers, each with an example; without them nobody else would see a worker's runs."""


@command
def up(
    options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(),
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    run_here: Annotated[bool, Parameter(name="--worker")] = True,
    notify: str | None = None,
) -> None:
    """Start Prefect, MLflow, a worker and all deployments on this machine; Ctrl-C stops them.

    The options become parameters of the model's deployments, such as `retrain/ads`.

    Args:
        prefect_port: Port of Prefect's server.
        mlflow_port: Port of MLflow's server.
        run_here: Also run flows on this machine; otherwise start `worker` elsewhere.
        notify: Prefect notification block to use for failed retrainings, as TYPE/NAME.
    """
    settings = open_home()
    quiet_environment()
    os.environ["MLFLOW_BACKEND_STORE_URI"] = settings.tracking_uri
    # experiments of the home's own database keep their files in the home, so that `run` reads them without a server
    own = ["--default-artifact-root", settings.artifact_root] if settings.tracking_uri.startswith(LOCAL) else []
    given = options.model_dump(exclude_unset=True, exclude_none=True) | ({"notify": notify} if notify else {})
    words = [
        f"--{name.replace('_', '-')}={one}"
        for name, value in given.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    servers = {
        "home": str(settings.home),
        "prefect_port": prefect_port,
        "mlflow_port": mlflow_port,
        "files": ["--artifacts-destination", settings.artifact_root, *own],
        "deploy": ["flows.cli.app", "deploy", *words],
        "worker": [*WORKER, POOL, "--limit", "2"] if run_here else [],
    }
    started = "Prefect, MLflow and a worker" if run_here else "Prefect and MLflow"
    terminal.note(f"starting {started}; the first time takes half a minute")
    os.execv(sys.executable, [sys.executable, "-m", "flows.servers.local", json.dumps(servers)])


@command
def deploy(options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(), *, notify: str | None = None) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL, as `up` also does.

    The options become parameters of the model's deployments, such as `retrain/ads`.

    Args:
        notify: Prefect notification block for failed retrainings, as TYPE/NAME.
    """
    for model, setting in deploy_all(options, notify, _server("PREFECT_API_URL")).items():
        is_one = "source" in setting and setting.get("mode") != "pool"
        kind = "one model, planned as a whole" if is_one else "a pool for models not seen yet"
        values = ", ".join(f"{name} {value}" for name, value in setting.items() if name != "model")
        terminal.say(f"model    {model}: {kind}; {values or 'the tables and sizes of the recipe'}")


@command
def worker(*, pool: str = POOL, queue: str | None = None, limit: Positive = 2) -> None:
    """Run flows on this machine for the team's servers at PREFECT_API_URL and MLFLOW_TRACKING_URI.

    Args:
        pool: Work pool to take runs from.
        queue: Queue to take runs from, e.g. of one kind of GPU; by default all queues.
        limit: Maximum number of simultaneous runs.
    """
    open_home()
    for name in _SERVERS:
        _server(name)
    queues = ("--work-queue", queue) if queue else ()
    os.execv(sys.executable, [sys.executable, "-m", *WORKER, pool, "--limit", str(limit), *queues])


def _server(name: str) -> str:
    """The address of a team's server; raises a ValueError if the environment has none."""
    address = os.environ.get(name, "")
    if not address.startswith("http"):
        raise ValueError(
            f"{name} is {address or 'not set'}, so the team's server is unknown; set it, e.g. to {_SERVERS[name]}, or use "
            "`dreamshard up`"
        )
    return address
