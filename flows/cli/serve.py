"""`dreamshard serve`: the champion behind MLflow's scoring server, until Ctrl-C."""

import signal
import threading
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
            help="The interface to listen on; 0.0.0.0 for all. Whoever reaches it may ask: there is no log-in."
        ),
    ] = "127.0.0.1",
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that answer; one answers one request after the other.")
    ] = 1,
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
    enter(home, existing=True)
    from flows.servers.processes import serving, wait_for_any
    from storage.mlflow_store import registry
    from storage.settings import Settings

    settings = Settings.load()
    number = registry.resolve(settings, version)
    example = registry.example_request(settings, number)
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    terminal.ERR.print(f"starting MLflow's scoring server on version {number}; this takes some seconds")
    with serving(settings, number, port=port, host=host, workers=workers) as (address, process):
        named = "" if version == number else f" ({version})"
        _say(f"version {number}{named} answers at {address}/invocations; whether it is well at {address}/health")
        _say("Try it:")
        _say(f"  curl {address}/invocations -H 'Content-Type: application/json' -d '{example}'")
        _say("It goes on serving this version when another becomes champion: start again for that. Ctrl-C ends it.")
        ended = wait_for_any({"serve": process}, stop)
    if ended is not None:
        raise RuntimeError(f"the scoring server ended by itself; see {settings.home / 'logs' / 'serve.log'}")


def _say(line: str) -> None:
    terminal.OUT.print(line, highlight=False, markup=False, soft_wrap=True)
