"""`dreamshard run` and `watch`, and one command per stage: each runs a flow in this process on the home."""

import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

from prefect import Flow
from prefect.client.orchestration import get_client
from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn

import flows.evaluate
import flows.ingest
import flows.promote
import flows.retrain
import flows.train
import flows.watch
from flows.cli import terminal
from flows.cli.command import Fields, Json, command, open_home
from flows.forms.options import (
    CompareOptions,
    EvaluateOptions,
    IngestOptions,
    Options,
    PromoteOptions,
    RetrainingOptions,
    RetrainOptions,
    StageOptions,
    WatchOptions,
)
from flows.runtime.tasks import ANNOUNCEMENT, STAGES, listening
from storage.run_records.trainings import in_words

_LINE_EVERY_S = 60.0


@command
def run(options: Annotated[RetrainOptions, Fields] = RetrainOptions(), *, as_json: Json = False) -> None:
    """Train on your tables in this process: ingest, measure, fit, evaluate, promote, plan."""
    store, started = open_home(), time.monotonic()
    outcome = run_flow(flows.retrain.retrain, options, as_json=as_json)
    if as_json:
        return
    _show_promotion(outcome)
    terminal.say(outcome["plan"]["sentence"])
    terminal.say(f"Done in {time.monotonic() - started:.0f} s. Everything is in {store.home}.")
    placer = "" if outcome["alias"] == "champion" else f" --placer {outcome['version']}"
    terminal.say(f"Next: `dreamshard place TABLES{placer}` plans, `dreamshard models` compares versions")


@command
def watch(options: Annotated[RetrainingOptions, Fields] = RetrainingOptions(), *, as_json: Json = False) -> None:
    """Report whether tables changed since the last training, and which retraining is due."""
    outcome = run_flow(flows.watch.watch, WatchOptions(**options.given(), start=False), as_json=as_json)
    if as_json:
        return
    terminal.say(f"{outcome['source']}: {outcome['sentence']}")
    if outcome["table"]:
        terminal.print_table(outcome["table"])
    terminal.say(f"{outcome['champion']} {outcome['learning']}".strip())
    terminal.say(f"{outcome['retraining']} Nothing was started; the deployment `watch` of `dreamshard up` starts it.")


@command
def ingest(options: Annotated[IngestOptions, Fields] = IngestOptions(), *, as_json: Json = False) -> None:
    """Read tables and their lookups into the home, so that `train` can measure and learn."""
    _stage(flows.ingest.ingest, options, as_json, "train")


@command
def profile(*, options: Annotated[StageOptions, Fields] = StageOptions(), as_json: Json = False) -> None:
    """Measure the placements of the next training iteration."""
    _stage(flows.train.profile, options, as_json, "train")


@command
def train(*, options: Annotated[StageOptions, Fields] = StageOptions(), as_json: Json = False) -> None:
    """Train the cost network and the policy for all remaining iterations."""
    _stage(flows.train.train, options, as_json, "evaluate")


@command
def evaluate(*, options: Annotated[EvaluateOptions, Fields] = EvaluateOptions(), as_json: Json = False) -> None:
    """Compare the trained placer with the heuristics and the champion on held-out tasks."""
    _stage(flows.evaluate.evaluate, options, as_json, "register")


@command
def compare(options: Annotated[CompareOptions, Fields], *, as_json: Json = False) -> None:
    """Compare VERSIONS and other placers on tasks held out for all of them."""
    open_home(existing=True)
    _stage(flows.evaluate.compare, options, as_json, "promote VERSION")


@command
def register(options: Annotated[StageOptions, Fields] = StageOptions(), *, as_json: Json = False) -> None:
    """Register the trained placer, as champion if it beats the current one."""
    outcome = run_flow(flows.promote.register, options, as_json=as_json)
    if not as_json:
        _show_promotion(outcome)


@command
def promote(options: Annotated[PromoteOptions, Fields] = PromoteOptions(), *, as_json: Json = False) -> None:
    """Make VERSION champion, or a plan current, at once; `previous` rolls back."""
    # without a flow, which would first start a Prefect server
    outcome = flows.promote.take_into_use(open_home(existing=True), options)
    if as_json:
        terminal.print_json(outcome)
        return
    terminal.say(outcome["sentence"])
    if outcome["roll_back"]:
        terminal.say(f"To roll back: {outcome['roll_back']}")


def _stage(flow: Flow[..., dict[str, Any]], options: Options, as_json: bool, following: str) -> None:
    """Run a stage and show its outcome and the command that comes next, with the same options."""
    outcome = run_flow(flow, options, as_json=as_json)
    if as_json:
        return
    # notes were announced
    table, title, caveat, _ = (outcome.pop(name, "") for name in ("table", "title", "caveat", "notes"))
    if table:
        terminal.print_table(table, title=title)
    if caveat:
        terminal.say(f"Note: {caveat}")
    terminal.show_fields(outcome)
    terminal.say(f"Next, with the same options: dreamshard {following}")


def run_flow(flow: Flow[..., dict[str, Any]], options: Options, *, as_json: bool) -> dict[str, Any]:
    """Run a flow with its options in this process and return its outcome; show it as JSON, or progress bars until then."""
    open_home()  # fail before the server starts
    for name in ("alembic", "mlflow", "httpx", "EventsWorker"):  # Prefect is quiet already, except the last
        logging.getLogger(name).setLevel(logging.ERROR)
    # The server inherits the mask, as a terminal sends Ctrl-C to it, too. If it ended first, Prefect would retry tasks
    # without it: a smoke run then still ran after three minutes. With the mask it ends with one sentence.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with terminal.ERR.status("waiting for Prefect's server"):
        get_client(sync_client=True)  # starts the temporary server, if no other is configured
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        with nullcontext() if as_json else _progress_bars():
            outcome: dict[str, Any] = flow(**options.model_dump(exclude_unset=True))
    except KeyboardInterrupt:
        terminal.note("interrupted; finished work is kept, and the same command continues from it")
        raise SystemExit(130) from None
    if as_json:
        terminal.print_json(outcome)
    return outcome


@contextmanager
def _progress_bars() -> Iterator[None]:
    """Show a progress bar per stage while the block runs; without a terminal, a line per finished stage and per minute."""
    shown = (*Progress.get_default_columns(), MofNCompleteColumn(), TextColumn("{task.fields[note]}", markup=False))
    bars = Progress(*shown, console=terminal.ERR)
    rows: dict[str, TaskID] = {}
    on_terminal, printed_at = terminal.ERR.is_terminal, time.monotonic()

    def show(stage: str, done: int, total: int, text: str) -> None:
        nonlocal printed_at
        if stage == ANNOUNCEMENT:
            bars.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif on_terminal:
            if stage not in rows:
                rows[stage] = bars.add_task(stage, total=total, note="")
            bars.update(rows[stage], completed=done, total=total, note=text, refresh=True)
        elif stage in STAGES and (done == total or time.monotonic() >= printed_at + _LINE_EVERY_S):
            printed_at = time.monotonic()
            terminal.note(f"{stage}: {done} of {total} {text}".rstrip())

    with listening(show), bars if on_terminal else nullcontext():
        yield


def _show_promotion(outcome: Mapping[str, Any]) -> None:
    """The version that a promotion decided on, and why."""
    terminal.print_table(outcome["table"], title=outcome["title"])
    terminal.say(f"{in_words(outcome['version'])} is {outcome['standing']}: {outcome['reason']}")
    for note in filter(None, (outcome["caveat"], outcome["note"])):
        terminal.say(f"Note: {note}")
    terminal.say(f"Trained {outcome['effort']}\n{outcome['prediction']}")
    terminal.show_fields(outcome["where"])
