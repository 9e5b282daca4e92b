"""The `dreamshard` command: parses, calls a flow or a library function, shows what came back.

Prefect, MLflow and torch are imported inside the commands: `--help` answers at once, and the environment comes first.
"""

import sys
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any, Literal

import typer

from flows.cli import inspect, place, prune, serve, servers, terminal
from flows.cli.options import (
    DevicesOption,
    HomeOption,
    JsonOption,
    MemoryOption,
    PeersOption,
    RecipeOption,
    SeedOption,
    TablesOption,
    TestbedOption,
    TraceOption,
    enter,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learns what embedding tables cost on your hardware, and which GPU should hold which.",
)
app.command("place")(place.place)
app.command("models")(inspect.models)
app.command("sql")(inspect.sql)
app.command("doctor")(inspect.doctor)
app.command("serve")(serve.serve)
app.command("prune")(prune.prune)
app.command("up")(servers.up)
app.command("deploy")(servers.deploy)
app.command("worker")(servers.worker)

_debug = False


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's logs.")] = False,
) -> None:
    """Set what holds for every command; `--debug` is also understood after the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits 0 when done, 1 with one sentence on stderr, 2 on wrong usage."""
    global _debug
    given = list(sys.argv[1:] if arguments is None else arguments)
    _debug = "--debug" in given
    sys.excepthook = _one_sentence
    if not _debug:
        warnings.simplefilter("ignore")
    typer.main.get_command(app)([word for word in given if word != "--debug"])  # app() would set its own hook


def _one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What a person sees of an error; Python then exits with 1."""
    if _debug:
        sys.__excepthook__(kind, error, trace)
        return
    terminal.fail(sentence(error))


def sentence(error: BaseException) -> str:
    """What happened, on one line; an error that nobody foresaw says how to report it."""
    if isinstance(error, ValueError | OSError | RuntimeError):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {error}; run again with --debug and report what it shows"


@app.command()
def run(
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    source: Annotated[str | None, typer.Option("--source", help="Other tables than the recipe's.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Train from nothing, not on from the champion.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """The whole chain in this process: ingest, measure, learn, evaluate, promote. Needs no server."""
    from flows.cli import run

    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed, "source": source, "full": full}
    run.run_chain(given | _sizes(devices, memory_gb, tables_per_task), as_json=as_json)


@app.command()
def watch(
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    source: Annotated[str | None, typer.Option("--source", help="Other tables than the recipe's.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look whether tables changed since the last training, and say what would start."""
    from flows.cli import run

    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed, "source": source}
    run.run_watch(given | _sizes(devices, memory_gb, tables_per_task), as_json=as_json)


@app.command()
def ingest(
    source: Annotated[
        str, typer.Argument(help="A .pt, .pt.gz, .tsv, .tsv.gz or .csv file, or a bundled workload's name.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="What to call the data set.")] = None,
    recipe: RecipeOption = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tables and their lookups into the lake."""
    from flows.cli import run

    enter(home, debug=_debug)
    run.run_stage("ingest", {"recipe": recipe, "source": source, "name": name}, as_json=as_json)


@app.command()
def profile(
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help="When a collection of costs ends.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Of a collection of costs.")
    ] = "auto",
    trace: TraceOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the placements of the next training iteration; with --recipe h200_costs, shards on a GPU."""
    from flows.cli import run

    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed, "seconds": seconds, "device": device}
    given |= _sizes(devices, memory_gb, tables_per_task)
    run.run_stage("profile", given, as_json=as_json, trace=trace)


@app.command()
def train(
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the cost network and the policy: all iterations that are left."""
    from flows.cli import run

    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed} | _sizes(devices, memory_gb, tables_per_task)
    run.run_stage("train", given, as_json=as_json)


@app.command()
def evaluate(
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    peers: PeersOption = False,
    trace: TraceOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the trained placer with every rule of thumb and the champion on held-out tasks."""
    from flows.cli import run

    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed, "peers": peers}
    given |= _sizes(devices, memory_gb, tables_per_task)
    run.run_stage("evaluate", given, as_json=as_json, trace=trace)


@app.command()
def compare(
    versions: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION...",
            help="Versions, champion, challenger, previous, cost_greedy, rules of thumb, published rivals; gains are over "
            "the first.",
        ),
    ],
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    peers: PeersOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare any versions and other placers on the same tasks, held out for all of them."""
    enter(home, debug=_debug, existing=True)
    from flows.cli import run
    from flows.reports import comparisons

    comparisons.resolve(versions, with_peers=peers)  # fail before the server starts
    given = {"versions": versions, "recipe": recipe, "seed": seed, "testbed": testbed, "peers": peers}
    run.run_stage("compare", given | _sizes(devices, memory_gb, tables_per_task), as_json=as_json)


@app.command()
def promote(
    version: Annotated[
        str | None, typer.Argument(help="A version or alias (previous undoes): champion at once, without the options.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why this VERSION; kept on it.")] = "",
    recipe: RecipeOption = "default",
    seed: SeedOption = 0,
    testbed: TestbedOption = None,
    devices: DevicesOption = None,
    memory_gb: MemoryOption = None,
    tables_per_task: TablesOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register the trained placer, champion if it beats the one in use; or make VERSION champion at once."""
    from flows.cli import run

    if version is not None:
        inspect.make_champion(version, reason, home, as_json=as_json)
        return
    enter(home, debug=_debug)
    given = {"recipe": recipe, "seed": seed, "testbed": testbed} | _sizes(devices, memory_gb, tables_per_task)
    run.run_stage("promote", given, as_json=as_json)


def _sizes(devices: int | None, memory_gb: float | None, tables_per_task: int | None) -> dict[str, Any]:
    """The sizes of tasks under the names that the flows have for them."""
    return {"num_devices": devices, "memory_gb": memory_gb, "tables_per_task": tables_per_task}


if __name__ == "__main__":
    main()
