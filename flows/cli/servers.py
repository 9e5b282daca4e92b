"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, enter, with_options
from flows.forms.options import RetrainingOptions
from flows.runtime.environment import prepare

Port = Annotated[int, typer.Option(min=1, max=65535)]
NotifyOption = Annotated[
    str | None,
    typer.Option("--notify", help="Who is told of failed retrainings: TYPE/NAME of a notification block of Prefect."),
]
NEEDED = {"PREFECT_API_URL": "http://HOST:4200/api", "MLFLOW_TRACKING_URI": "http://HOST:5000"}
"""Settings of a worker, each with an example; without them nobody else would see its runs."""


@with_options
def up(
    options: RetrainingOptions,
    home: HomeOption = None,
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
    run_here: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run flows here too; otherwise run `worker` elsewhere.")
    ] = True,
    notify: NotifyOption = None,
) -> None:
    """Start Prefect's server, MLflow's server, a worker and all deployments on this machine; Ctrl-C ends them.

    Options that you give become the team's setting, which every flow takes: Prefect's variable `dreamshard`.
    """
    settings = enter(home).settings
    from flows.servers.local import local_servers

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal.note("starting Prefect, MLflow and a worker; the first time takes half a minute")
    try:
        with local_servers(settings, prefect_port, mlflow_port) as servers, ExitStack() as ending:
            from flows.servers.deployment import deploy  # imports Prefect, which then reads the environment

            deploy(options.given(), notify)
            if run_here:
                worker = ("prefect", "worker", "start", "--pool", "dreamshard", "--limit", "2")
                ending.enter_context(servers.child("worker", *worker))
            terminal.say(f"Prefect  {servers.prefect}/v2/deployments")
            terminal.say(f"MLflow   {servers.mlflow}")
            terminal.say(f"home     {settings.home} (logs in {settings.home / 'logs'})")
            terminal.say("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.")
            while (ended := servers.first_ended()) is None:
                time.sleep(1)
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"{ended} ended, so the others were ended too; see {settings.home / 'logs' / ended}.log")


@with_options
def deploy(options: RetrainingOptions, notify: NotifyOption = None, home: HomeOption = None) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL; `up` does this itself.

    Options that you give become the team's setting, which every flow takes: Prefect's variable `dreamshard`.
    """
    prepare(home)
    if not os.environ.get("PREFECT_API_URL"):
        raise ValueError(
            "PREFECT_API_URL is not set, so there is no server to deploy to; set it, e.g. to http://HOST:4200/api, or use "
            "`dreamshard up`"
        )
    from flows.servers import deployment

    deployment.deploy(options.given(), notify)


def worker(
    home: HomeOption = None,
    pool: Annotated[str, typer.Option(help="Work pool to take runs from.")] = "dreamshard",
    queue: Annotated[str | None, typer.Option(help="Take only runs of this queue, e.g. of one kind of GPU.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of simultaneous runs.")] = 2,
) -> None:
    """Run flows on this machine for the servers at PREFECT_API_URL and MLFLOW_TRACKING_URI."""
    prepare(home)  # logs on: a worker's log is what its users read
    enter(home)
    for name, example in NEEDED.items():
        found = os.environ.get(name, "")
        if not found.startswith("http"):
            raise ValueError(
                f"{name} is {found or 'not set'}, so the team would not see what runs here; set it to e.g. {example}"
            )
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", str(limit)]
    os.execv(sys.executable, [*command, *(("--work-queue", queue) if queue else ())])
