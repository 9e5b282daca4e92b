"""Options of commands: those of a flow's options type, and those that all commands share."""

import inspect
import os
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer
from pydantic.fields import FieldInfo
from typer.models import ParameterInfo

from flows.forms.field_parts import REQUIRED
from flows.forms.flat import flattened, option_parameters
from flows.forms.options import RecipeOptions, StageOptions
from flows.runtime.environment import prepare

if TYPE_CHECKING:
    from storage.store import Store

Result = TypeVar("Result")

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Where everything is kept.", envvar="DREAMSHARD_HOME", show_default=".dreamshard"),
]
HardwareOption = Annotated[
    str | None,
    typer.Option("--hardware", help="What the plan is for: a preset, e.g. h100, or a file of your own (.yaml, .json)."),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        max=2**31 - 1,
        help="Training samples per step of all devices.",
        show_default="as measured",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="File for a time line of what was measured (chrome://tracing, Perfetto).")
]

debug = False
"""Whether the command line has `--debug`; `app.main` sets it."""


def with_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command whose first parameter is an options type the fields that are on the command line instead."""
    return flattened(command, _on_command_line)


def shared_options(options: RecipeOptions) -> str:
    """The options that the stages of one training must have in common, as one types them."""
    typed = ""
    for parameter in filter(None, map(_on_command_line, option_parameters(StageOptions))):
        value = getattr(options, parameter.name, parameter.default)
        if value != parameter.default:
            typed += f" {_typer_info(parameter).default} {value}"  # Typer keeps an annotated option's name there
    return typed


def enter(home: Path | None, *, existing: bool = False, shared: bool = True, reads_only: bool = False) -> "Store":
    """Prepare the environment for the home, and open the store.

    Args:
        home: from the command line; None for the environment's.
        existing: refuse a home that does not exist, which for a command that only reads is a misspelt one.
        shared: use `DREAMSHARD_STORE` if it is set; otherwise the store is the home.
        reads_only: of a command that keeps nothing, so that a home which this user may only read will do.

    Raises:
        ValueError: home or store cannot be written, or the home does not exist and should.
    """
    folder = prepare(home, log_level="INFO" if debug else "CRITICAL")
    from storage.settings import Settings
    from storage.store import open_store

    if existing and not folder.is_dir() and not {"MLFLOW_TRACKING_URI", "DREAMSHARD_STORE"} & set(os.environ):
        raise ValueError(
            f"there is no home {folder}, so there is nothing to look at; check --home or DREAMSHARD_HOME, or make it with "
            "`dreamshard run`"
        )
    settings = Settings.from_environment(os.environ if shared else {**os.environ, "DREAMSHARD_STORE": ""})
    return open_store(settings, reads_only=reads_only)


def _on_command_line(field: inspect.Parameter) -> inspect.Parameter | None:
    """The field as Typer's parameter, bounded as in the form, or None where it is not on the command line."""
    kind, *notes = get_args(field.annotation)
    if not any(isinstance(note, ParameterInfo) for note in notes):
        return None
    info = copy(_typer_info(field))
    for bound in next(note for note in notes if isinstance(note, FieldInfo)).metadata:
        info.min = getattr(bound, "ge", None) if info.min is None else info.min
        info.max = getattr(bound, "le", None) if info.max is None else info.max
    default = inspect.Parameter.empty if REQUIRED in notes else field.default
    keyword = inspect.Parameter.KEYWORD_ONLY  # so that an argument without a default may follow options
    return field.replace(kind=keyword, annotation=Annotated[kind, info], default=default)


def _typer_info(parameter: inspect.Parameter) -> ParameterInfo:
    return next(note for note in get_args(parameter.annotation) if isinstance(note, ParameterInfo))
