"""Prefect flows of options types, and what Prefect's form makes of their fields.

Prefect draws the form from a schema that it derives from the flow's signature. Its page drops bounds beside a type, and
shows an optional number as two tabs; so `field_schema` puts bounds below `allOf`, and an empty field is an absent one.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from pydantic import Field, TypeAdapter

from flows.forms.flat import flattened
from flows.forms.setting import with_setting
from storage.mlflow_store import runs
from storage.settings import Settings

Result = TypeVar("Result")

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum")


def deployed(name: str) -> Callable[[Callable[..., Result]], Flow[..., Result]]:
    """Make the Prefect flow `name` of a function that takes one options object.

    The flow's parameters are the fields of the options, for its form, for the API and for calls from Python. The team's
    setting fills those that are left empty.
    """

    def decorate(body: Callable[..., Result]) -> Flow[..., Result]:
        @wraps(body)
        def with_all(options: Any) -> Result:
            return body(with_setting(options))

        made: Flow[..., Result] = Flow(
            fn=flattened(with_all, lambda field: field),
            name=name,
            persist_result=True,
            result_serializer="json",
            on_cancellation=[_end_runs],
            on_crashed=[_end_runs],
        )
        drawn = [_drawn(field) for field in inspect.signature(made.fn).parameters.values()]
        vars(made)["__signature__"] = inspect.Signature(drawn)  # only the form is drawn from it
        return made

    return decorate


def field_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of one type (or None): bounds below `allOf`, None as the absence of a value."""
    schema = TypeAdapter(annotation).json_schema()
    for choice in schema.pop("anyOf", []):
        if choice["type"] != "null":
            schema |= choice
    bounds = {name: schema.pop(name) for name in _BOUNDS if name in schema}
    return schema | ({"allOf": [bounds]} if bounds else {})


def _drawn(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter as the form shows it; the schema must not name the default None, or Prefect refuses an empty field."""
    schema = field_schema(parameter.annotation)
    if parameter.default is not None:
        return parameter.replace(annotation=Annotated[Any, Field(json_schema_extra=schema)])
    empty = Annotated[Any, Field(json_schema_extra=schema, default_factory=lambda: None)]
    return parameter.replace(annotation=empty, default=Field())


def _end_runs(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Mark what a cancelled or crashed flow run has left open in MLflow as KILLED."""
    runs.end_killed(
        Settings.from_environment(), str(flow_run.id), f"{flow.name} was {state.name}: {state.message or ''}"
    )
