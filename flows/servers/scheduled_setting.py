"""Where the setting of the scheduled flows comes from: an option, the environment, what the home kept, else the recipe."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError
from typer.models import OptionInfo

from dreamshard.workloads import known_as
from flows.forms.flat import option_parameters
from flows.forms.options import RetrainingOptions
from storage.schedule import Schedule, read_schedule, write_schedule

_SOURCES = ("source", "batches")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the schedule as a person gives it.

    Attributes:
        option: on the command line.
        kind: its type with its bounds.
    """

    name: str
    option: str
    help: str
    kind: Any

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "DREAMSHARD_" + self.option.removeprefix("--").replace("-", "_").upper()


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a field's value comes from, in words."""

    field: Field
    value: Any
    found: str


def schedule_fields() -> list[Field]:
    """The fields of the schedule, in the order of Prefect's form."""
    known = {field.name for field in fields(Schedule)}
    listed = []
    for parameter in option_parameters(RetrainingOptions):
        if parameter.name in known:
            info = next(note for note in get_args(parameter.annotation) if isinstance(note, OptionInfo))
            listed.append(
                Field(name=parameter.name, option=str(info.default), help=str(info.help), kind=parameter.annotation)
            )
    return listed


def settled(
    options: Mapping[str, str | None], home: Path, environ: Mapping[str, str] = os.environ
) -> tuple[Schedule, list[Origin]]:
    """The schedule, and where each of its fields comes from.

    Args:
        options: text of each option that was given, by the field's name; an empty text unsets the field, as does an empty
            environment variable.

    Raises:
        ValueError: a value is none for its field, or what the home kept cannot be read.
    """
    kept = read_schedule(home)
    values: dict[str, Any] = {}
    origins = []
    for field in schedule_fields():
        given, from_environment = options.get(field.name), environ.get(field.variable)
        if given is not None:
            value, found = _parsed(field, field.option, given), f"given as {field.option}"
        elif from_environment is not None:
            value, found = _parsed(field, field.variable, from_environment), f"from {field.variable}"
        else:
            value, found = getattr(kept, field.name), "kept by the home"
        if value is None:
            found = "not set: the recipe's, or derived"
        values[field.name] = value
        origins.append(Origin(field=field, value=value, found=found))
    return complete(Schedule(**values)), origins


def keep(home: Path, schedule: Schedule) -> None:
    """Keep the schedule in the home for later starts."""
    if schedule != read_schedule(home):
        write_schedule(home, schedule)


def _parsed(field: Field, where: str, text: str) -> Any:
    if not text.strip():
        return None
    try:
        value = TypeAdapter(field.kind).validate_python(text.strip())
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise ValueError(
            f"{where} is {text!r}, but {reason}, so the scheduled flows cannot run with it; give another value, or an empty "
            "one for the recipe's"
        ) from error
    return known_as(value) if field.name in _SOURCES else value


def complete(schedule: Schedule) -> Schedule:
    """The schedule without the recipe's own name where nothing else is meant."""
    return replace(schedule, recipe=None) if schedule.recipe == RetrainingOptions().recipe else schedule
