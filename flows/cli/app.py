"""The `dreamshard` command: lists the commands, and turns errors into one sentence.

A command's module is imported when the command runs, so that `--help` need not wait for torch and MLflow.
"""

import argparse
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
import typer.core

from dreamshard.files.text import FOR_PEOPLE, error_sentence, without_passwords
from flows.cli import terminal
from flows.runtime.environment import prepare

COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Learn and place": {
        "run": ("stages", "Run the whole chain in this process: ingest, measure, learn, evaluate, promote."),
        "place": ("place", "Place TABLES: write the plan to stdout or a file, and its figures to stderr."),
        "explain": (
            "explain",
            "Explain PLAN for TABLES: what makes devices slow, and what tables would cost elsewhere.",
        ),
        "what-if": (
            "explain",
            "Compare clusters for TABLES: cost of a step, memory and balance, by published figures.",
        ),
        "watch": ("stages", "Show whether tables changed since the last training, and which retraining that starts."),
    },
    "Look at what was measured": {
        "models": ("models", "Versions side by side, with the champion of each hardware; VERSION in full."),
        "compare": ("stages", "Compare any versions and other placers on the same tasks, held out for all of them."),
        "sql": ("home", "Ask DuckDB over everything that was measured and registered."),
        "doctor": ("doctor", "Check devices, the fbgemm build, pinned versions, servers, home and store."),
    },
    "Stages of `run`, one by one": {
        "ingest": ("stages", "Read tables and their lookups into the home, so that `train` can measure and learn."),
        "profile": ("stages", "Measure the placements of the next training iteration."),
        "train": ("stages", "Train the cost network and the policy: all iterations that are left."),
        "evaluate": ("stages", "Compare the trained placer with every rule of thumb and the champion."),
        "promote": ("stages", "Register the trained placer, champion if it is better; or make VERSION champion."),
    },
    "Servers and workers": {
        "up": ("servers", "Start Prefect, MLflow, a worker and all deployments on this machine; Ctrl-C ends them."),
        "deploy": ("servers", "Create the work pool and all deployments on the server at PREFECT_API_URL."),
        "worker": ("servers", "Run flows on this machine for the servers of a team."),
    },
    "The home": {"prune": ("home", "Remove old files that no version needs; a dry run without --delete.")},
}
"""Every command: the part of `--help` that lists it, its module in this package, and its help."""


def load(name: str) -> Any:
    """The command with its options, from the module of its name."""
    module = next(commands[name][0] for commands in COMMANDS.values() if name in commands)
    own = typer.Typer(add_completion=False)
    own.command(name)(getattr(import_module(f"flows.cli.{module}"), name.replace("-", "_")))
    return typer.main.get_command(own)


class _Commands(typer.core.TyperGroup):
    """Takes the command that was typed from its module."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        known.add_argument("--home", type=Path)
        logs = terminal.debug or name in ("deploy", "worker")  # which people read there
        prepare(
            known.parse_known_args(args)[0].home, log_level="INFO" if logs else "CRITICAL"
        )  # before Prefect's import
        return name, load(name) if command and name else command, rest


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learns what embedding tables cost on your hardware, and which GPU should hold which.",
)
for part, commands in COMMANDS.items():
    for name, (_, about) in commands.items():
        app.command(name, help=about, rich_help_panel=part)(lambda: None)


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's logs.")] = False,
) -> None:
    """Accept `--debug` before the command; `main` also takes it after the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits 0 when done, 1 with one sentence on stderr, 2 on wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal.debug = "--debug" in words
    sys.excepthook = one_sentence
    if not terminal.debug:
        warnings.simplefilter("ignore")
    typer.main.get_command(app)([word for word in words if word != "--debug"])  # app() would set its own hook


def one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error to people; Python then exits with 1."""
    if terminal.debug:
        sys.stderr.write(without_passwords("".join(traceback.format_exception(kind, error, trace))))
    else:
        terminal.fail(sentence(error))


def sentence(error: BaseException) -> str:
    """The error's message on one line, without passwords; for an unexpected error, with how to report it."""
    advice = "" if isinstance(error, FOR_PEOPLE) else "; run again with --debug and report what it shows"
    return f"{error_sentence(error)}{advice}"


if __name__ == "__main__":
    main()
