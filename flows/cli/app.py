"""The `dreamshard` command: lists the commands, and prepares the home before it imports the one that was typed.

So `--help` need not wait for torch, and Prefect and MLflow, which read their settings on import, find the home's.
"""

import warnings
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter
from pydantic import ValidationError
from rich.text import Text

from flows.cli import terminal
from flows.runtime.environment import prepare

COMMANDS = {
    "Learn and place": {
        "stages:run": "Train on your tables in this process: ingest, measure, fit, evaluate, promote, plan.",
        "plans:learn": "Learn a job's real costs from PROFILES of its steps, and write a better plan.",
        "plans:place": "Place TABLES: write the plan to a file or stdout, and a summary to stderr.",
        "plans:explain": "Explain PLAN for TABLES: why devices are slow, and what each table would cost elsewhere.",
        "plans:what_if": "Compare clusters for TABLES by published figures: cost of a step, memory, balance.",
        "stages:watch": "Report whether tables changed since the last training, and which retraining is due.",
    },
    "Inspect and promote": {
        "records:models": "Show versions side by side, with the champion of each hardware, or VERSION in full.",
        "stages:promote": "Make VERSION champion, or a plan current, at once; previous rolls back.",
        "stages:compare": "Compare VERSIONS and other placers on tasks held out for all of them.",
        "records:sql": "Query everything that was measured and registered with DuckDB.",
        "doctor:doctor": "Check devices, the fbgemm build, servers, home and store.",
    },
    "Single stages of `run`": {
        "stages:ingest": "Read tables and their lookups into the home, so that `train` can measure and learn.",
        "stages:profile": "Measure the placements of the next training iteration.",
        "stages:train": "Train the cost network and the policy for all remaining iterations.",
        "stages:evaluate": "Compare the trained placer with the heuristics and the champion.",
        "stages:register": "Register the trained placer, as champion if it beats the one in use.",
    },
    "Servers and workers": {
        "servers:up": "Start Prefect, MLflow, a worker and all deployments on this machine; Ctrl-C stops them.",
        "servers:deploy": "Create the work pool and all deployments on the server at PREFECT_API_URL.",
        "servers:worker": "Run flows on this machine for a team's servers.",
    },
    "The home": {"records:prune": "List old files that no version needs, and remove them with --delete."},
}
"""Every command by the part of `--help` that lists it: its module of this package, its function, and its help."""


def sentence_of(error: CycloptsError) -> Text:
    """Wrong usage on one line."""
    problem = " ".join(str(error).split())
    if isinstance(error.__cause__, ValidationError):
        wrong = error.__cause__.errors()[-1]  # of a union's reasons the last one
        value = "" if wrong["type"] == "missing" else f" {wrong['input']!r}"
        problem = f"{wrong['loc'][0]}{value}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}"
    return Text(f"dreamshard: {problem.rstrip('.')}; see --help")


app = App(
    name="dreamshard",
    error_formatter=sentence_of,
    help="Learns what embedding tables cost on your hardware, and decides which GPU holds which.",
    help_epilogue="Every command takes --home FOLDER, the folder that holds everything (default: DREAMSHARD_HOME, or "
    ".dreamshard), and --debug, which shows tracebacks and Prefect's logs.",
    version_flags=(),
    default_parameter=Parameter(negative_iterable=()),
)
for part, commands in COMMANDS.items():
    panel = Group.create_ordered(part)
    for path, about in commands.items():
        app.command(f"flows.cli.{path}", help=about, group=panel)

main = App(help_flags=(), version_flags=())


@main.default
def launch(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)], home: Path | None = None, debug: bool = False
) -> None:
    """Run a command on a home; ends with 0 when done, 1 with one sentence on stderr, 2 on wrong usage."""
    terminal.debug = debug
    if not debug:
        warnings.simplefilter("ignore")
    read_by_people = debug or words[:1] in [("deploy",), ("worker",)]
    prepare(home, log_level="INFO" if read_by_people else "CRITICAL")
    try:
        app(words)
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__  # cyclopts wraps it
        if not isinstance(missing, ModuleNotFoundError):
            raise
        terminal.note(
            f"dreamshard: {words[0]} needs {missing.name}; `pip install 'dreamshard[pipeline]'` brings it", "red"
        )
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
