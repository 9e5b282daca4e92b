"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, enter
from flows.cli.schedule_options import Given, NotifyOption, with_schedule
from flows.runtime.environment import prepare
from flows.servers.scheduled_setting import keep, settled
from storage.login import FILE, LOGIN

Port = Annotated[
    int,
    typer.Option(
        min=1, max=65535, help="If it is taken, another port is chosen on 127.0.0.1; elsewhere nothing starts."
    ),
]


@with_schedule
def up(
    given: Given,
    home: HomeOption = None,
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
    host: Annotated[
        str, typer.Option(help="Interface to listen on; all but this machine's own ask for a login; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    run_here: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run flows here too; otherwise run `worker` elsewhere.")
    ] = True,
    notify: NotifyOption = None,
) -> None:
    """Start Prefect's server, MLflow's server, a worker and all deployments; Ctrl-C ends them.

    What was edited in Prefect's UI stays, unless you give its option or its value here changed since the last start.
    """
    settings = enter(home).settings
    schedule, _ = settled(given, settings.home)
    from flows.servers.local_servers import local_servers
    from flows.servers.processes import StoppedError, stop_signal, wait_for_any

    logs = settings.home / "logs"
    stop = stop_signal()
    terminal.note(
        "checking the setting, then starting Prefect, MLflow and a worker; the first time takes half a minute"
    )
    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    typed = [name for name, value in given.items() if value is not None]
    servers = local_servers(
        settings, schedule, **ports, host=host, worker=run_here, notify=notify, given=typed, stop=stop
    )
    with ExitStack() as running:
        try:
            addresses = running.enter_context(servers)
        except StoppedError:
            terminal.note("stopped before everything ran; what had started is ended")
            return
        keep(settings.home, schedule)
        for sentence in addresses.notes:
            terminal.note(sentence)
        terminal.say(f"Prefect  {addresses.prefect}/v2/deployments")
        terminal.say(f"MLflow   {addresses.mlflow}")
        terminal.say(f"home     {settings.home} (logs in {logs})")
        if addresses.login is not None:
            terminal.say(f"login    {_how_to_log_in(settings.home, addresses.login)}")
        terminal.say("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.")
        ended = wait_for_any(addresses.processes, stop)
    if ended is not None:
        raise RuntimeError(f"{ended} ended by itself, so the others were ended too; see {logs / ended}.log")


def _how_to_log_in(home: Path, login: str) -> str:
    """In a terminal with the password; logs of a supervisor name only where it is."""
    file = home / FILE
    shown = login if terminal.OUT.is_terminal else f"in {file}" if file.is_file() else f"of {LOGIN}"
    return f"{shown}; commands and workers elsewhere need {LOGIN}=NAME:PASSWORD"


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
    from flows.servers import worker

    worker.run_worker(pool, queue, limit)
