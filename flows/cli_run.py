"""The commands that run flows in this process: `run` and one per stage."""

import contextlib
import importlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flows import terminal

STAGE_FLOWS = {
    "ingest": "flows.ingest:ingest",
    "profile": "flows.profile:profile",
    "train": "flows.train:train",
    "evaluate": "flows.evaluate:evaluate",
    "promote": "flows.promote:promote",
}


def run_chain(parameters: Mapping[str, Any], *, as_json: bool) -> None:
    """Run the chain and show what came of it."""
    from flows import evaluations
    from flows.parameters import configure
    from flows.report import summary_rows

    configure(
        parameters["recipe"], testbed=parameters["testbed"], source=parameters["source"]
    )  # fail before the server starts
    began = time.monotonic()
    with in_process(), terminal.progress_bars(quiet=as_json):
        outcome = _flow("flows.retrain:retrain")(**parameters)
    report = evaluations.load(outcome["evaluation"])
    if as_json:
        terminal.print_json({**outcome, "summary": report["summary"], "best_baseline": report["best_baseline"]})
        return
    terminal.print_table(
        summary_rows(report), title=f"Held-out tasks on {outcome['testbed']} (95 % intervals, paired by task)"
    )
    _say(f"Version {outcome['version']} is {outcome['alias']}: {outcome['reason']}")
    _say(f"Done in {time.monotonic() - began:.0f} s. Everything lies in {os.environ['DREAMSHARD_HOME']}:")
    for name, place in outcome["where"].items():
        _say(f"  {name:<12} {place}")
    _say("Next:")
    _say("  dreamshard models")
    _say('  dreamshard sql "select hardware, avg(overall_ms) from cost_samples group by 1"')
    _say("  dreamshard place TABLES.csv --devices 8 --memory-gb 80")


def run_stage(name: str, parameters: Mapping[str, Any], *, as_json: bool) -> None:
    """Run one stage's flow on what is in the home and show what came of it."""
    with in_process(), terminal.progress_bars(quiet=as_json):
        outcome: dict[str, Any] = _flow(STAGE_FLOWS[name])(
            **{key: value for key, value in parameters.items() if value is not None}
        )
    if as_json:
        terminal.print_json(outcome)
        return
    table = outcome.pop("table", None)
    if table:
        terminal.print_table(table)
    for key, value in outcome.items():
        _say(f"{key}: {terminal.shown(value)}")


@contextlib.contextmanager
def in_process() -> Iterator[None]:
    """Prefect's settings for flows of this process: a temporary server unless one is named, no heartbeats."""
    from prefect.client.orchestration import get_client
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    for name in ("alembic", "mlflow", "prefect", "httpx", "distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    get_client(sync_client=True)  # starts the temporary server, whose environment cannot hold the setting below
    server = SubprocessASGIServer().server_process
    if server is not None:
        _end_with_us(server.pid)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _end_with_us(pid: int) -> None:
    """End the process when this one is gone, even by `kill -9`: a shell waits for our end of a pipe to close."""
    subprocess.Popen(
        ["sh", "-c", 'read -r _; kill "$0" 2>/dev/null', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal must not end the watcher first
    )


def _flow(entrypoint: str) -> Callable[..., Any]:
    module, _, name = entrypoint.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _say(line: str) -> None:
    terminal.OUT.print(line, highlight=False, markup=False, soft_wrap=True)
