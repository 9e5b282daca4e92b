"""Options of commands: those of a flow's options type, and those that all commands share."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic.fields import FieldInfo

from flows.cli import terminal
from flows.forms.flat import flattened, option_parameters
from flows.forms.options import ARGUMENT, RecipeOptions, StageOptions
from flows.runtime.environment import prepare
from storage.settings import Settings
from storage.store import Store, open_store

Result = TypeVar("Result")

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Where everything is kept.", envvar="DREAMSHARD_HOME", show_default=".dreamshard"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
_BOUNDS = (("min", "ge"), ("min", "gt"), ("max", "le"))


def with_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command whose first parameter is an options type the fields that are on the command line instead."""
    return flattened(command, _option)


def shared_options(options: RecipeOptions) -> str:
    """The options that the stages of one training must have in common, as one types them."""
    typed = ""
    for parameter in option_parameters(StageOptions):
        value = getattr(options, parameter.name, parameter.default)
        if value != parameter.default:
            typed += f" {_flag(parameter)} {value}"
    return typed


def enter(home: Path | None, *, existing: bool = False, shared: bool = True, reads_only: bool = False) -> Store:
    """Prepare the environment for the home, and open the store.

    Args:
        home: from the command line; None for the environment's.
        existing: refuse a home that does not exist, which for a command that only reads is a misspelt one.
        shared: use `DREAMSHARD_STORE` if it is set; otherwise the store is the home.
        reads_only: of a command that keeps nothing, so that a home which this user may only read will do.

    Raises:
        ValueError: home or store cannot be written, or the home does not exist and should.
    """
    folder = prepare(home, log_level="INFO" if terminal.debug else "CRITICAL")
    if existing and not folder.is_dir() and not {"MLFLOW_TRACKING_URI", "DREAMSHARD_STORE"} & set(os.environ):
        raise ValueError(
            f"there is no home {folder}; check --home or DREAMSHARD_HOME, or make it with `dreamshard run`"
        )
    settings = Settings.from_environment(os.environ if shared else {**os.environ, "DREAMSHARD_STORE": ""})
    return open_store(settings, reads_only=reads_only)


def _option(field: inspect.Parameter) -> inspect.Parameter:
    """The field as Typer's parameter, with the form's description and bounds."""
    kind, *notes = get_args(field.annotation)
    drawn = _drawn_as(field)
    bounds = {old: getattr(each, new) for each in drawn.metadata for old, new in _BOUNDS if hasattr(each, new)}
    is_argument = any(note is ARGUMENT for note in notes)
    info: Any = typer.Argument(help=drawn.description) if is_argument else None
    info = info or typer.Option(_flag(field), help=drawn.description, **bounds)
    return field.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])


def _flag(field: inspect.Parameter) -> str:
    """`--memory-gb` of the title `Memory GB`."""
    return "--" + str(_drawn_as(field).title).lower().replace(" ", "-")


def _drawn_as(field: inspect.Parameter) -> FieldInfo:
    return next(note for note in get_args(field.annotation) if isinstance(note, FieldInfo))
