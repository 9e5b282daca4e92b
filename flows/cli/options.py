"""Options that several commands share, and the one way in which a command enters the home."""

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.runtime.environment import prepare

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Where everything is kept.", envvar="DREAMSHARD_HOME", show_default=".dreamshard"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
RecipeOption = Annotated[str, typer.Option("--recipe", help="A complete configuration by name.")]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of every draw; the same seed gives the same bits.")
]
DevicesOption = Annotated[
    int | None, typer.Option("--devices", min=1, max=4096, help="To place tables on.", show_default="the recipe's")
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-gb", min=0.001, max=100_000, help="Room for tables on each, GiB.", show_default="the recipe's"
    ),
]
TablesOption = Annotated[
    int | None,
    typer.Option("--tables-per-task", min=1, max=100_000, help="In each placement task.", show_default="the recipe's"),
]
TestbedOption = Annotated[
    str | None,
    typer.Option(
        "--testbed",
        help="auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory.",
        show_default="the recipe's",
    ),
]
PeersOption = Annotated[
    bool, typer.Option("--peers", help="The published rivals as well; two of them are trained first, in seconds.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="Write what was measured as a time line for chrome://tracing or Perfetto."),
]


def enter(home: Path | None, *, debug: bool = False, existing: bool = False, store: bool = True) -> Path:
    """Prepare the environment for the home and check that it can be written.

    Args:
        existing: for commands that only look at what is there: a home that is not, is a mistake in its name.
        store: whether `DREAMSHARD_STORE` must be writable too.

    Raises:
        ValueError: the home cannot be written, or is not there and should be.
    """
    folder = prepare(home, log_level="INFO" if debug else "CRITICAL")
    from storage.settings import Settings

    if existing and not folder.is_dir() and not {"MLFLOW_TRACKING_URI", "DREAMSHARD_STORE"} & set(os.environ):
        raise ValueError(
            f"there is no home {folder}, so there is nothing to look at; check --home or DREAMSHARD_HOME, or make it with "
            "`dreamshard run`"
        )
    Settings.load(os.environ if store else {**os.environ, "DREAMSHARD_STORE": ""})
    return folder
