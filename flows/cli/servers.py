"""`dreamshard up`, `deploy` and `worker`: servers and workers, here or for a team."""

import signal
import threading
from typing import Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, enter


def up(
    home: HomeOption = None,
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Tried first.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Tried first.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Interface to listen on; 0.0.0.0 lets everybody who reaches this machine run flows.")
    ] = "127.0.0.1",
    run_here: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run flows on this machine too; else `worker` on others does.")
    ] = True,
) -> None:
    """Prefect's server, MLflow's server, a worker and all deployments, until Ctrl-C."""
    folder = enter(home)
    from flows.servers.processes import running, wait_for_any
    from storage.settings import Settings

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    terminal.ERR.print("starting Prefect, MLflow and a worker; the first time takes half a minute")
    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    with running(Settings.load(), **ports, host=host, worker=run_here) as addresses:
        terminal.OUT.print(f"Prefect  {addresses.prefect}/deployments", highlight=False)
        terminal.OUT.print(f"MLflow   {addresses.mlflow}", highlight=False)
        terminal.OUT.print(f"home     {folder} (logs in {folder / 'logs'})", highlight=False, soft_wrap=True)
        terminal.OUT.print("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.", highlight=False)
        ended = wait_for_any(addresses.processes, stop)
    if ended is not None:
        raise RuntimeError(f"{ended} ended by itself, so the others were ended too; see {folder / 'logs' / ended}.log")


def deploy(
    kind: Annotated[
        Literal["process", "docker", "kubernetes"] | None,
        typer.Option("--type", help="How the work pool starts runs. Left out: as it does; processes for a new one."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Of deploy/Dockerfile, for containers.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Of each container; 0 for none.")] = 0,
) -> None:
    """The work pool and all deployments, on the server that PREFECT_API_URL names; `up` does this by itself."""
    from flows.runtime.environment import prepare

    prepare()
    from flows.servers import work_pool

    work_pool.deploy(kind, image, gpus)


def worker(
    home: HomeOption = None,
    pool: Annotated[str, typer.Option(help="Work pool to take runs from.")] = "dreamshard",
    queue: Annotated[
        str | None, typer.Option(help="Only runs of this queue of the pool, e.g. of one kind of GPU.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 2,
) -> None:
    """A worker on this machine for the servers of another: PREFECT_API_URL and MLFLOW_TRACKING_URI say which."""
    enter(home, debug=True)  # a worker's log is what its people read
    from flows.servers import worker

    worker.become(pool, queue, limit)
