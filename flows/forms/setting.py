"""The team's setting: which tables flows look at and train for, as one JSON variable of Prefect, edited on its page.

Every flow of a training takes it where its own fields are empty, and the recipe where the setting says nothing either.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from prefect.context import FlowRunContext
from prefect.variables import Variable
from pydantic import TypeAdapter, ValidationError

from dreamshard.workloads import known_as
from flows.forms.options import IngestOptions, RetrainingOptions, StageOptions

Options = TypeVar("Options")

NAME = "dreamshard"
"""Of the variable, on Prefect's page *Variables*."""


def read_setting() -> dict[str, Any]:
    """The fields of `RetrainingOptions` that the team has set.

    Raises:
        ValueError: the variable has another field, or a value that its field does not take.
    """
    return checked(Variable.get(NAME, default={}))


def write_setting(changes: Mapping[str, Any]) -> None:
    """Change fields of the setting; the others stay."""
    Variable.set(NAME, checked({**read_setting(), **changes}), overwrite=True)


def with_setting(options: Options) -> Options:
    """The options of a flow run, with the setting's value in each field that is left at its default.

    A comparison and a plan take what they lack from versions, so their options stay as they are.
    """
    is_training = isinstance(options, RetrainingOptions | StageOptions | IngestOptions)
    if not is_training or FlowRunContext.get() is None:  # None: called as a plain function
        return options
    empty = {each.name for each in fields(options) if getattr(options, each.name) == each.default}  # type: ignore[arg-type]
    found = {name: value for name, value in read_setting().items() if name in empty}
    return replace(options, **found)  # type: ignore[type-var]


def checked(setting: Any) -> dict[str, Any]:
    """The setting, with sources as they are known everywhere.

    Raises:
        ValueError: as for `read_setting`.
    """
    try:
        TypeAdapter(RetrainingOptions).validate_python(setting, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"the setting {setting} is wrong at {where} ({first['msg']}); correct Prefect's variable {NAME}"
        ) from error
    return {name: known_as(value) if name in ("source", "batches") else value for name, value in setting.items()}
