"""Prefect flows of options, and the team's setting, which fills what their options leave empty.

The setting says which tables flows look at and train for: one JSON variable of Prefect, edited on its page. Each flow run
copies it into the store, where commands that start no flow read it.
"""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import PurePath
from typing import Any, TypeVar

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.variables import Variable
from pydantic import ValidationError

from dreamshard.workloads import known_as
from flows.forms.configuration import KEPT, kept_setting
from flows.forms.options import IngestOptions, Options, RetrainingOptions, StageOptions
from storage.filesystem import write_json
from storage.mlflow_store import runs
from storage.settings import Settings

Chosen = TypeVar("Chosen", bound=Options)
Result = TypeVar("Result")

NAME = "dreamshard"
"""Of the variable, on Prefect's page *Variables*."""


def deployed(body: Callable[[Chosen], Result]) -> Flow[[Chosen], Result]:
    """Make a Prefect flow of a function of options: the team's setting fills those that are left empty."""

    @wraps(body)
    def with_all(options: Chosen) -> Result:
        return body(with_setting(options))

    return Flow(
        with_all,
        flow_run_name=_subject,
        persist_result=True,
        result_serializer="json",
        on_cancellation=[_end_runs],
        on_crashed=[_end_runs],
    )


def read_setting() -> dict[str, Any]:
    """The fields of `RetrainingOptions` that the team has set; the store keeps a copy.

    Raises:
        ValueError: the variable has another field, or a value that its field does not take.
    """
    setting, settings = checked(Variable.get(NAME, default={})), Settings.from_environment()
    if setting != kept_setting(settings):
        write_json(settings.store_root / KEPT, setting)
    return setting


def write_setting(changes: Mapping[str, Any]) -> None:
    """Change fields of the setting; the others stay."""
    Variable.set(NAME, checked({**read_setting(), **changes}), overwrite=True)
    read_setting()


def with_setting(options: Chosen) -> Chosen:
    """The options of a flow run, with the setting's value in each field that is left at its default.

    A comparison takes what it lacks from versions, and a plan also from the copy of the setting, so their options stay.
    """
    if FlowRunContext.get() is None:  # called as a plain function
        return options
    setting = read_setting()
    is_training = isinstance(options, RetrainingOptions | StageOptions | IngestOptions)
    if not is_training:
        return options
    fields = type(options).model_fields
    empty = {name for name, field in fields.items() if getattr(options, name) == field.default}
    return options.model_copy(update={name: value for name, value in setting.items() if name in empty})


def checked(setting: Any) -> dict[str, Any]:
    """The setting, with sources as they are known everywhere.

    Raises:
        ValueError: as for `read_setting`.
    """
    try:
        RetrainingOptions.model_validate(setting)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"the setting {setting} is wrong at {where} ({first['msg']}); correct Prefect's variable {NAME}"
        ) from error
    return {name: known_as(value) if name in ("source", "batches") else value for name, value in setting.items()}


def _end_runs(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Mark what a cancelled or crashed flow run has left open in MLflow as KILLED."""
    why = f"{flow.name} was {state.name}: {state.message or ''}"
    runs.end_killed(Settings.from_environment(), str(flow_run.id), why)


def _subject() -> str:
    """The subject of a run, such as `model.csv`; a name that somebody gave it, unlike Prefect's two words, stays."""
    named, context = str(flow_run.name), FlowRunContext.get()
    if context is None or context.parameters is None or not re.fullmatch(r"[A-Za-z]+-[A-Za-z]+", named):
        return named
    options = with_setting(context.parameters["options"])
    fields = ("versions", "version", "tables", "source", "dataset", "recipe")
    subject = next(filter(None, (getattr(options, name, None) for name in fields)), None)
    if isinstance(subject, list):
        return ", ".join(subject)
    return PurePath(subject).name if subject else named
