"""`dreamshard serve`: the champion behind MLflow's scoring server, until Ctrl-C."""

from typing import Annotated

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, enter


def serve(
    version: Annotated[str, typer.Option("--version", help="champion, challenger, previous or a number.")] = "champion",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Tried first.")] = 5001,
    host: Annotated[
        str,
        typer.Option(
            help="The interface to listen on; 0.0.0.0 for all. Anyone who reaches it can use it: there is no log-in."
        ),
    ] = "127.0.0.1",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes; each answers one request at a time.")] = 1,
    home: HomeOption = None,
) -> None:
    """Answer placements over HTTP, from MLflow's own scoring server, until Ctrl-C.

    POST /invocations takes {"inputs": [REQUEST, ...]} and answers {"predictions": [PLAN, ...]}, a plan for each request
    in the form of `dreamshard place --format json`; `placer` in it says which version placed.

    REQUEST has num_devices, memory_gb (GiB of each device) and tables: objects with name, rows, dim, pooling_factor and
    optionally lookups, unique_rows, bins (17 shares); beside them optionally precision (fp32, fp16), optimizer (sgd,
    rowwise_adagrad) and budget_ms.

    A request that is wrong is answered with 400 and a message that names the field. GET /health answers 200. The version
    is chosen at the start: to serve another champion, start again.
    """
    settings = enter(home, existing=True).settings
    from flows.servers.processes import stop_signal, wait_for_any
    from flows.servers.scoring_server import scoring_server
    from storage.mlflow_store import registry

    number = registry.resolve(settings, version)
    example = registry.example_request(settings, number)
    stop = stop_signal()
    terminal.ERR.print(f"starting MLflow's scoring server on version {number}; this takes some seconds")
    with scoring_server(settings, number, port=port, host=host, workers=workers) as (address, process):
        named = "" if version == number else f" ({version})"
        terminal.say(f"version {number}{named} answers at {address}/invocations; health check at {address}/health")
        terminal.say("Try it:")
        terminal.say(f"  curl {address}/invocations -H 'Content-Type: application/json' -d '{example}'")
        terminal.say("It keeps serving this version when another becomes champion: restart it then. Ctrl-C ends it.")
        ended = wait_for_any({"serve": process}, stop)
    if ended is not None:
        raise RuntimeError(f"the scoring server ended by itself; see {settings.home / 'logs' / 'serve.log'}")
