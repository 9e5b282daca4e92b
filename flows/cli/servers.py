"""`dreamshard up`, `deploy` and `worker`: servers and workers, on this machine or for a team."""

from typing import Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, enter
from flows.runtime.environment import prepare


def up(
    home: HomeOption = None,
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Tried first.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Tried first.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Interface to listen on; 0.0.0.0 lets anyone who reaches this machine run flows.")
    ] = "127.0.0.1",
    run_here: Annotated[
        bool,
        typer.Option("--worker/--no-worker", help="Run flows on this machine too; otherwise run `worker` on others."),
    ] = True,
) -> None:
    """Start Prefect's server, MLflow's server, a worker and all deployments; Ctrl-C ends them."""
    settings = enter(home).settings
    from flows.servers.local_servers import local_servers
    from flows.servers.processes import stop_signal, wait_for_any

    logs = settings.home / "logs"
    stop = stop_signal()
    terminal.ERR.print("starting Prefect, MLflow and a worker; the first time takes half a minute")
    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    with local_servers(settings, **ports, host=host, worker=run_here) as addresses:
        terminal.OUT.print(f"Prefect  {addresses.prefect}/deployments", highlight=False)
        terminal.OUT.print(f"MLflow   {addresses.mlflow}", highlight=False)
        terminal.OUT.print(f"home     {settings.home} (logs in {logs})", highlight=False, soft_wrap=True)
        terminal.OUT.print("Start `retrain` from Prefect's Deployments page. Ctrl-C ends everything.", highlight=False)
        ended = wait_for_any(addresses.processes, stop)
    if ended is not None:
        raise RuntimeError(f"{ended} ended by itself, so the others were ended too; see {logs / ended}.log")


def deploy(
    kind: Annotated[
        Literal["process", "docker", "kubernetes"] | None,
        typer.Option("--type", help="How the work pool starts runs. Omitted: unchanged, or processes for a new pool."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Of deploy/Dockerfile, for containers.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Of each container; 0 for none.")] = 0,
) -> None:
    """Create the work pool and all deployments on the server at PREFECT_API_URL; `up` does this itself."""
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
    """Run flows on this machine for the servers at PREFECT_API_URL and MLFLOW_TRACKING_URI."""
    prepare(home)  # logs on: a worker's log is what its users read
    enter(home)
    from flows.servers import worker

    worker.run_worker(pool, queue, limit)
