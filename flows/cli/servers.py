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
from flows.servers.deployment import POOL
from flows.servers.deployment import deploy as deploy_all
from flows.servers.local import local_servers

WORKER = ("prefect", "worker", "start", "--pool")
NEEDED = {"PREFECT_API_URL": "http://HOST:4200/api", "MLFLOW_TRACKING_URI": "http://HOST:5000"}
"""Settings of a worker, each with an example; without them nobody else would see its runs."""


@command
def up(
    options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(),
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    run_here: Annotated[bool, Parameter(name="--worker")] = True,
    notify: str | None = None,
) -> None:
    """Start Prefect's server, MLflow's server, a worker and all deployments on this machine; Ctrl-C ends them.

    Options that you give become the setting of their model: the parameters of its deployments, such as `retrain/ads`.

    Args:
        run_here: Run flows here too; otherwise run `worker` elsewhere.
        notify: Prefect notification block for failed retrainings, as TYPE/NAME.
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
            terminal.say(f"Prefect  {servers.prefect}/v2/deployments")
            terminal.say(f"MLflow   {servers.mlflow}/#/models")
            terminal.say(f"home     {settings.home} (logs in {settings.home / 'logs'})")
            show_models(deployed)
            terminal.say("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.")
            while (ended := servers.first_ended()) in (None, "worker"):
                if ended:
                    terminal.note(
                        "the worker ended; it is started again, and its runs go on when they are started again"
                    )
                    ending.close()
                    ending.enter_context(servers.child(*command))
                time.sleep(1)
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"{ended} ended, so the others were ended too; see {settings.home / 'logs' / ended}.log")


@command
def deploy(options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(), *, notify: str | None = None) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL; `up` does this itself.

    Options that you give become the setting of their model: the parameters of its deployments, such as `retrain/ads`.

    Args:
        notify: Prefect notification block for failed retrainings, as TYPE/NAME.
    """
    if not (server := os.environ.get("PREFECT_API_URL")):
        raise ValueError(
            "PREFECT_API_URL is not set, so there is no server to deploy to; set it, e.g. to http://HOST:4200/api, or use "
            "`dreamshard up`"
        )
    show_models(deploy_all(options, notify, server))


def show_models(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Each model with its setting, and whether its tables are one model."""
    for model, setting in settings.items():
        pool = "source" not in setting or setting.get("mode") == "pool"
        values = ", ".join(f"{name} {value}" for name, value in setting.items() if name != "model")
        kind = "a pool for models not seen yet" if pool else "one model, planned as a whole"
        terminal.say(f"model    {model}: {kind}; {values or 'the tables and sizes of the recipe'}")


@command
def worker(*, pool: str = POOL, queue: str | None = None, limit: Positive = 2) -> None:
    """Run flows on this machine for the servers at PREFECT_API_URL and MLFLOW_TRACKING_URI.

    Args:
        pool: Work pool to take runs from.
        queue: Take only runs of this queue, e.g. of one kind of GPU.
        limit: Number of simultaneous runs.
    """
    open_home()
    for name, example in NEEDED.items():
        found = os.environ.get(name, "")
        if not found.startswith("http"):
            raise ValueError(
                f"{name} is {found or 'not set'}, so the team would not see what runs here; set it to e.g. {example}"
            )
    queues = ("--work-queue", queue) if queue else ()
    os.execv(sys.executable, [sys.executable, "-m", *WORKER, pool, "--limit", str(limit), *queues])
