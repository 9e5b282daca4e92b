"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, Any

from cyclopts import Parameter

from flows.cli import terminal
from flows.cli.command import Fields, Positive, command, open_home
from flows.forms.options import RetrainingOptions
from flows.servers.deployment import POOL, deploy as deploy_all
from flows.servers.local import local_servers

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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal.note("starting Prefect, MLflow and a worker; the first time takes half a minute")
    try:
        with local_servers(settings, prefect_port, mlflow_port) as servers, ExitStack() as ending:
            deployed = deploy_all(options, notify, f"{servers.prefect}/api")
            command = ("worker", *WORKER, POOL, "--limit", "2")
            if run_here:
                ending.enter_context(servers.child(*command))
            terminal.say(
                f"Prefect  {servers.prefect}/v2/deployments\n"
                f"MLflow   {servers.mlflow}/#/models\n"
                f"home     {settings.home} (logs in {settings.home / 'logs'})"
            )
            show_models(deployed)
            terminal.say("Start `retrain` from Prefect's Deployments page. Ctrl-C stops everything.")
            while (ended := servers.first_ended()) in (None, "worker"):
                if ended:
                    terminal.note("the worker ended and is being restarted; restart its runs to continue them")
                    ending.close()
                    ending.enter_context(servers.child(*command))
                time.sleep(1)
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"{ended} ended, so the others were stopped too; see {settings.home / 'logs' / ended}.log")


@command
def deploy(options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(), *, notify: str | None = None) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL, as `up` also does.

    The options become parameters of the model's deployments, such as `retrain/ads`.

    Args:
        notify: Prefect notification block for failed retrainings, as TYPE/NAME.
    """
    show_models(deploy_all(options, notify, _server("PREFECT_API_URL")))


def show_models(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Each model with its setting, and whether its tables are one model."""
    for model, setting in settings.items():
        pool = "source" not in setting or setting.get("mode") == "pool"
        values = ", ".join(f"{name} {value}" for name, value in setting.items() if name != "model")
        kind = "a pool for models not seen yet" if pool else "one model, planned as a whole"
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
