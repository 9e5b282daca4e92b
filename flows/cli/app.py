"""The `dreamshard` command: lists the commands, and prepares the home before it imports the one that was typed.

So `--help` need not wait for torch, and Prefect and MLflow, which read their settings on import, find the home's.
"""

import ast
import warnings
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter
from pydantic import ValidationError
from rich.text import Text

from flows.cli import terminal
from flows.runtime.environment import prepare

COMMANDS = {
    "Learn and place": "stages:run plans:learn plans:place plans:explain plans:what_if stages:watch",
    "Inspect and promote": "records:models stages:promote stages:compare records:sql doctor:doctor",
    "Single stages of `run`": "stages:ingest stages:profile stages:train stages:evaluate stages:register",
    "Servers and workers": "servers:up servers:deploy servers:worker",
    "The home": "records:prune",
}
"""Every command by the part of `--help` that lists it: its module of this package and its function."""


def docstring(path: str) -> str | None:
    """The help of a command: its function's docstring, read without importing the module."""
    module, name = path.split(":")
    functions = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")).body
    return next(
        ast.get_docstring(node) for node in functions if isinstance(node, ast.FunctionDef) and node.name == name
    )


def sentence_of(error: CycloptsError) -> Text:
    """Wrong usage on one line."""
    problem = " ".join(str(error).split())
    if isinstance(error.__cause__, ValidationError):
        wrong = error.__cause__.errors()[-1]  # of a union's reasons the last one
        value = "" if wrong["type"] == "missing" else f" {wrong['input']!r}"
        problem = f"{wrong['loc'][0]}{value}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}"
    return Text(f"dreamshard: {problem.rstrip('., ')}; see --help")


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
    for path in commands.split():
        app.command(f"flows.cli.{path}", help=docstring(path), group=panel)

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
