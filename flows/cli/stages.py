"""One command per stage: it runs the stage's flow in this process on what is in the home."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.cli import outcomes, terminal
from flows.cli.command_options import (
    HomeOption,
    JsonOption,
    TraceOption,
    enter,
    shared_options,
    with_options,
)
from flows.forms.options import (
    CompareOptions,
    EvaluateOptions,
    IngestOptions,
    PromoteOptions,
    RecipeOptions,
    StageOptions,
)


@with_options
def ingest(options: IngestOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Read tables and their lookups into the home, so that `train` can measure and learn."""
    enter(home)
    from flows.ingest import ingest

    _run(ingest, options, as_json, f"train{shared_options(options)}")


@with_options
def profile(
    options: StageOptions, trace: TraceOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Measure the placements of the next training iteration."""
    enter(home)
    from flows.profile import profile

    _run(profile, options, as_json, f"train{shared_options(options)}", trace=trace)


@with_options
def train(options: StageOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Train the cost network and the policy: all iterations that are left."""
    enter(home)
    from flows.train import train

    _run(train, options, as_json, f"evaluate{shared_options(options)}")


@with_options
def evaluate(
    options: EvaluateOptions, trace: TraceOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Compare the trained placer with every rule of thumb and the champion on held-out tasks."""
    enter(home)
    from flows.evaluate import evaluate

    _run(evaluate, options, as_json, f"promote{shared_options(options)}", trace=trace)


@with_options
def compare(options: CompareOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Compare any versions and other placers on the same tasks, held out for all of them."""
    store = enter(home, existing=True)
    from flows.compare import compare
    from flows.decisions import comparison, contestants
    from flows.forms.configuration import configure
    from flows.runtime.testbed_pool import check_testbed

    who = contestants.resolve(store, options.versions, with_rivals=options.rivals)  # fail before the server starts
    filled, _ = comparison.with_sizes_of_versions(store, options, list(filter(None, who.values())))
    check_testbed(store, configure(filled))
    _run(compare, options, as_json, "models", "promote VERSION")


@with_options
def promote(options: PromoteOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Register the trained placer, champion if it beats the one in use; or make VERSION champion at once."""
    store = enter(home, existing=options.version is not None)
    if options.version is None:
        from flows.promote import promote

        outcome = terminal.run_flow(promote, options, quiet=as_json, numbered=False)
    else:  # without a flow, which would first start a Prefect server
        from flows.promote import replace_champion

        outcome = replace_champion(store, options.version, options.reason or "")
    if as_json:
        terminal.print_json(outcome)
    elif options.version is not None:
        outcomes.show_champion(outcome)
    else:
        outcomes.show_promotion(outcome)
        outcomes.show_fields(outcome["where"])
        outcomes.show_next("models", outcomes.place_example(outcome))


def _run(
    flow: Callable[..., dict[str, Any]],
    options: RecipeOptions,
    as_json: bool,
    *following: str,
    trace: Path | None = None,
) -> None:
    """Run a stage and show its outcome and the commands that come next.

    Args:
        trace: file for a time line of what the stage measured.
    """
    from dreamshard.files import atomic
    from flows.reports import trace_files
    from storage.store import open_store

    if trace is not None:
        atomic.check_output(trace, "timeline", "--trace")
    outcome = terminal.run_flow(flow, options, quiet=as_json, numbered=False)
    if trace is not None:
        num_placements = trace_files.write(open_store(), outcome, trace)
        terminal.note(f"wrote the time lines of {num_placements} placements to {trace}")
    if as_json:
        terminal.print_json(outcome)
        return
    table, title = outcome.pop("table", None), outcome.pop("title", "")
    outcome.pop("notes", None)  # were announced
    if table:
        terminal.print_table(table, title=title)
    outcomes.show_fields(outcome)
    outcomes.show_next(*following)
