"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, enter
from flows.cli.schedule_options import Given, NotifyOption, with_schedule
from flows.runtime.environment import prepare
from flows.servers.processes import Process
from flows.servers.scheduled_setting import keep, settled

Port = Annotated[int, typer.Option(min=1, max=65535)]
NEEDED = {"PREFECT_API_URL": "http://HOST:4200/api", "MLFLOW_TRACKING_URI": "http://HOST:5000"}
"""Settings of a worker, each with an example; without them nobody else would see its runs."""


@with_schedule
def up(
    given: Given,
    home: HomeOption = None,
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
    run_here: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run flows here too; otherwise run `worker` elsewhere.")
    ] = True,
    notify: NotifyOption = None,
) -> None:
    """Start Prefect's server, MLflow's server, a worker and all deployments on this machine; Ctrl-C ends them.

    What was edited in Prefect's UI stays, unless you give its option or its value here changed since the last start.
    """
    settings = enter(home).settings
    schedule, _ = settled(given, settings.home)
    from flows.servers.local_servers import local_servers

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal.note("starting Prefect, MLflow and a worker; the first time takes half a minute")
    typed = [name for name, value in given.items() if value is not None]
    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    try:
        with local_servers(settings, schedule, **ports, worker=run_here, notify=notify, given=typed) as running:
            keep(settings.home, schedule)
            for sentence in running.notes:
                terminal.note(sentence)
            terminal.say(f"Prefect  {running.prefect}/v2/deployments")
            terminal.say(f"MLflow   {running.mlflow}")
            terminal.say(f"home     {settings.home} (logs in {settings.home / 'logs'})")
            terminal.say("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.")
            while (ended := _first_ended(running.processes)) is None:
                time.sleep(1)
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"{ended} ended, so the others were ended too; see {settings.home / 'logs' / ended}.log")


def _first_ended(processes: Mapping[str, Process]) -> str | None:
    return next((name for name, process in processes.items() if process.poll() is not None), None)


@with_schedule
def deploy(
    given: Given,
    kind: Annotated[
        Literal["process", "docker", "kubernetes"] | None,
        typer.Option("--type", help="How the work pool starts runs. Omitted: unchanged, or processes for a new pool."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image of deploy/Dockerfile, for containers.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each container; 0 for none.")] = 0,
    notify: NotifyOption = None,
    home: HomeOption = None,
) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL; `up` does this itself.

    What was edited in Prefect's UI stays, unless you give its option or its value here changed since the last deployment.
    """
    folder = prepare(home)
    if not os.environ.get("PREFECT_API_URL"):
        raise ValueError(
            "PREFECT_API_URL is not set, so there is no server to deploy to; set it to the server's address, e.g. "
            "http://HOST:4200/api, or use `dreamshard up`, which deploys by itself"
        )
    schedule, _ = settled(given, folder)
    environ = {**os.environ, "DREAMSHARD_NOTIFY": notify or ""}
    from flows.servers import deployment, work_pool

    work_pool.checked_template(kind, image, gpus, environ)
    notes = deployment.check(schedule, measures_here=False, environ=environ)
    typed = [name for name, value in given.items() if value is not None]
    notes += deployment.deploy(schedule, environ, kind=kind, image=image, gpus=gpus, given=typed)
    keep(folder, schedule)
    for sentence in notes:
        terminal.note(sentence)


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
