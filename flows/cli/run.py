"""The commands that run flows in this process: `run` and one per stage."""

import contextlib
import importlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from flows.cli import terminal

STAGE_FLOWS = {
    "ingest": "flows.ingest:ingest",
    "profile": "flows.profile:profile",
    "train": "flows.train:train",
    "evaluate": "flows.evaluate:evaluate",
    "promote": "flows.promote:promote",
    "compare": "flows.compare:compare",
}
NEXT_STAGE = {"ingest": "train", "profile": "train", "train": "evaluate", "evaluate": "promote"}


def run_chain(parameters: Mapping[str, Any], *, as_json: bool) -> None:
    """Run the chain and show what came of it."""
    from flows.forms.configuration import configure
    from flows.forms.options import RetrainOptions
    from flows.reports import evaluations
    from flows.reports.evaluation_page import summary_rows

    configure(RetrainOptions(**parameters))  # fail before the server starts
    began = time.monotonic()
    retrain = _flow("flows.retrain:retrain")
    with in_process(), terminal.progress_bars(quiet=as_json):
        outcome = retrain(**parameters)
    report = evaluations.load(outcome["evaluation"])
    if as_json:
        terminal.print_json({**outcome, "summary": report["summary"], "best_baseline": report["best_baseline"]})
        return
    terminal.print_table(summary_rows(report), title=_title(outcome["testbed"]))
    _show_promotion(outcome)
    terminal.say(f"Done in {time.monotonic() - began:.0f} s. Everything lies in {_places()}:")
    _show_fields(outcome["where"])
    _show_next(
        "models",
        'sql "select hardware, avg(overall_ms) from cost_samples group by 1"',
        _place_example(outcome),
    )


def run_stage(name: str, parameters: Mapping[str, Any], *, as_json: bool, trace: Path | None = None) -> None:
    """Run one stage's flow on what is in the home and show what came of it, and what comes next.

    Args:
        trace: where to write the time lines of what was measured.
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    if trace is not None:
        from flows.reports import trace_files

        trace_files.check(given["recipe"])
    stage = _flow(STAGE_FLOWS[name])  # imported first: MLflow and Prefect set up their logging on import
    with in_process(), terminal.progress_bars(quiet=as_json, numbered=False):
        outcome: dict[str, Any] = stage(**given)
    if trace is not None:
        terminal.ERR.print(f"wrote the time lines of {trace_files.write(outcome, trace)} placements to {trace}")
    if as_json:
        terminal.print_json(outcome)
        return
    if name == "promote":
        _show_promotion(outcome)
        _show_fields(outcome["where"])
        _show_next("models", _place_example(outcome))
        return
    table = outcome.pop("table", None)
    if table:
        terminal.print_table(table, title=_title(outcome["testbed"]) if name in ("evaluate", "compare") else "")
    _show_fields(outcome)
    if name == "compare":
        _show_next("models", "promote VERSION")
        return
    _show_next(f"{NEXT_STAGE[name]}{_options(given)}")


def run_watch(parameters: Mapping[str, Any], *, as_json: bool) -> None:
    """Look once whether tables changed and show what would start; nothing is started."""
    watch = _flow("flows.watch:watch")
    with in_process(), terminal.progress_bars(quiet=as_json, numbered=False):
        outcome = watch(**parameters, emit=False)
    table = outcome.pop("table")
    if as_json:
        terminal.print_json(outcome)
        return
    terminal.say(f"{outcome['source']}: {outcome['sentence']}")
    if table:
        terminal.print_table(table)
    terminal.say(f"{outcome['retraining']} Nothing was started; the deployment `watch` of `dreamshard up` does that.")


def _title(testbed: str) -> str:
    return f"Held-out tasks on {testbed} (95 % intervals, paired by task)"


def _show_promotion(outcome: Mapping[str, Any]) -> None:
    terminal.say(f"Version {outcome['version']} is {outcome['alias']}: {outcome['reason']}")
    terminal.say(f"Trained {outcome['effort']}")
    if outcome["alias"] != "champion":
        terminal.say(f"It can be used all the same: --placer {outcome['version']}")


def _show_fields(fields: Mapping[str, Any]) -> None:
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        terminal.say(f"  {name.replace('_', ' '):<{width}}  {terminal.shown(value)}")


def _places() -> str:
    store = os.environ.get("DREAMSHARD_STORE")
    return os.environ["DREAMSHARD_HOME"] + (f" and {store}" if store else "")


def _show_next(*commands: str) -> None:
    terminal.say("Next:")
    for command in commands:
        terminal.say(f"  {terminal.typed(command)}")


def _place_example(outcome: Mapping[str, Any]) -> str:
    """Placing tables that are there: MLPerf's, from the package's data."""
    tables = os.path.relpath(Path(__file__).parents[2] / "dreamshard" / "workloads" / "data" / "mlperf-dlrm-dcnv2.csv")
    placer = "" if outcome["alias"] == "champion" else f" --placer {outcome['version']}"
    return f"place {tables} --devices 8 --memory-gb 40{placer}"


def _options(parameters: Mapping[str, Any]) -> str:
    """The options that the next stage needs to go on with this one's work."""
    usual = {"recipe": "default", "seed": 0}
    names = ("recipe", "seed", "testbed", "num_devices", "memory_gb", "tables_per_task")
    given = [name for name in names if name in parameters and parameters[name] != usual.get(name)]
    flags = {name: name.removeprefix("num_").replace("_", "-") for name in given}
    return "".join(f" --{flags[name]} {parameters[name]}" for name in given)


@contextlib.contextmanager
def in_process() -> Iterator[None]:
    """Prefect's settings for flows of this process: a temporary server unless one is named, no heartbeats."""
    from prefect.client.orchestration import get_client
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    for name in ("alembic", "mlflow", "httpx", "distributed", "EventsWorker", "APILogWorker"):  # not Prefect: `prepare`
        logging.getLogger(name).setLevel(logging.ERROR)
    get_client(sync_client=True)  # starts the temporary server, whose environment cannot hold the setting below
    server = SubprocessASGIServer().server_process
    if server is not None:
        _end_with_us(server.pid)
    before = signal.signal(signal.SIGINT, _stop_at_once)
    try:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_at_once(_signal: int, _frame: FrameType | None) -> None:
    """Ctrl-C. All that is written is whole and the next run goes on from it, so there is nothing to wait for.

    A terminal sends Ctrl-C to Prefect's temporary server too; a client that waited for it would try to reach it for a
    minute. Ranks and server end when they see that this process is gone.
    """
    os.write(2, b"\ndreamshard: interrupted; what is finished is kept, and the same command goes on from it\n")
    os._exit(130)


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
