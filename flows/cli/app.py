"""The `dreamshard` command: puts the commands together, and turns errors into one sentence.

Prefect, MLflow and torch are imported inside the commands: `--help` answers at once, and the environment comes first.
"""

import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Annotated

import typer

from dreamshard.files.text import FOR_PEOPLE, error_sentence, without_passwords
from flows.cli import (
    chain,
    command_options,
    doctor,
    explanation,
    home,
    models,
    place,
    servers,
    sql,
    stages,
    terminal,
    what_if,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learns what embedding tables cost on your hardware, and which GPU should hold which.",
)
_COMMANDS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Learn and place": (chain.run, place.place, explanation.explain, what_if.what_if, chain.watch),
    "Look at what was measured": (models.models, stages.compare, sql.sql, doctor.doctor),
    "Stages of `run`, one by one": (stages.ingest, stages.profile, stages.train, stages.evaluate, stages.promote),
    "Servers and workers": (servers.up, servers.deploy, servers.worker),
    "The home": (home.prune,),
}
"""Every command, by the part of `--help` that lists it."""

for part, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=part)(command)


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's logs.")] = False,
) -> None:
    """Accept `--debug` before the command; `main` also takes it after the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits 0 when done, 1 with one sentence on stderr, 2 on wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command_options.debug = "--debug" in words
    sys.excepthook = one_sentence
    if not command_options.debug:
        warnings.simplefilter("ignore")
    typer.main.get_command(app)([word for word in words if word != "--debug"])  # app() would set its own hook


def one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error to people; Python then exits with 1."""
    if command_options.debug:
        sys.stderr.write(without_passwords("".join(traceback.format_exception(kind, error, trace))))
    else:
        terminal.fail(sentence(error))


def sentence(error: BaseException) -> str:
    """The error's message on one line, without passwords; for an unexpected error, with how to report it."""
    advice = "" if isinstance(error, FOR_PEOPLE) else "; run again with --debug and report what it shows"
    return f"{error_sentence(error)}{advice}"


if __name__ == "__main__":
    main()
