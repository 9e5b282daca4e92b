"""Shared by all commands: the home, and errors as one sentence."""

import os
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec

from cyclopts import Parameter, validators

from dreamshard.files import FOR_PEOPLE, error_sentence, without_passwords
from flows.cli import terminal
from storage.settings import Settings
from storage.store import Store, open_store

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON on stdout, for programs.")]
Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Fields = Parameter(name="*")
"""Marks options whose fields are options of the command."""

P = ParamSpec("P")


def command(body: Callable[P, None]) -> Callable[P, None]:
    """Make a command of a function: an error becomes one sentence on stderr, after --debug a traceback, and exit code 1."""

    @wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            body(*args, **kwargs)
        except ModuleNotFoundError:
            raise  # `app` knows which packages are optional
        except Exception as error:  # noqa: BLE001 - the last place that can say what happened
            if terminal.debug:
                terminal.note(without_passwords(traceback.format_exc()))
            else:
                advice = "" if isinstance(error, FOR_PEOPLE) else "; run again with --debug and report the output"
                terminal.note(f"dreamshard: {error_sentence(error)}{advice}", "red")
            raise SystemExit(1) from None

    return run


def open_home(*, existing: bool = False, reads_only: bool = False) -> Store:
    """Open the store of the home.

    Args:
        existing: refuse a home that does not exist, which for a command that only reads is a misspelt one.
        reads_only: of a command that keeps nothing, so that a home which this user may only read will do.

    Raises:
        ValueError: home or store cannot be written, or the home does not exist and should.
    """
    settings = Settings.from_environment()
    if existing and not settings.home.is_dir() and not {"MLFLOW_TRACKING_URI", "DREAMSHARD_STORE"} & set(os.environ):
        raise ValueError(
            f"there is no home {settings.home}; check --home or DREAMSHARD_HOME, or make it with `dreamshard run`"
        )
    return open_store(settings, reads_only=reads_only)
