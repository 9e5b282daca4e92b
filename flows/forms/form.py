"""Prefect flows of options types, and what Prefect's form makes of their fields.

Prefect draws the form from a schema that it derives from the flow's signature. Its page drops bounds beside a type, and
shows an optional number as two tabs, with "not valid under any of the given schemas" for a wrong value. The schemas made
here have bounds where the page keeps them, and an optional field may be left empty.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from prefect import Flow
from prefect.utilities.hashing import file_hash
from pydantic import Field, TypeAdapter

from flows.forms import flow_failures
from flows.forms.flat import flattened

Result = TypeVar("Result")

flow_failures.install()

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "pattern": ""}


def deployed(name: str) -> Callable[[Callable[..., Result]], Flow[..., Result]]:
    """Make the Prefect flow `name` of a function that takes one options object.

    The flow's parameters are the fields of the options, for its form, for the API and for calls from Python.
    """

    def decorate(body: Callable[..., Result]) -> Flow[..., Result]:
        version = file_hash(inspect.getfile(body))  # Prefect's own default would be the hash of `flat.py`
        called = flow_failures.failing_in_one_sentence(body)
        made: Flow[..., Result] = Flow(
            fn=flattened(called, lambda field: field),
            name=name,
            version=version,
            persist_result=True,
            result_serializer="json",
            on_cancellation=[flow_failures.end_runs],
            on_crashed=[flow_failures.end_runs],
        )
        drawn = [_drawn(field) for field in inspect.signature(made.fn).parameters.values()]
        vars(made)["__signature__"] = inspect.Signature(drawn)  # only the form is drawn from it
        return made

    return decorate


def field_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of one type (or None): bounds below `allOf` and in words, None as the absence of a value."""
    schema = TypeAdapter(annotation).json_schema()
    for choice in schema.pop("anyOf", []):
        if choice["type"] != "null":
            schema |= choice
    bounds = {name: schema.pop(name) for name in _BOUNDS if name in schema}
    if not bounds:
        return schema
    in_words = ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in bounds.items() if _BOUNDS[name])
    description = f"{schema['description']} {in_words.capitalize()}." if in_words else schema["description"]
    return schema | {"allOf": [bounds], "description": description}


def _drawn(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter as the form shows it; the schema must not name the default None, or Prefect refuses an empty field."""
    schema = field_schema(parameter.annotation)
    if parameter.default is not None:
        return parameter.replace(annotation=Annotated[Any, Field(json_schema_extra=schema)])
    empty = Annotated[Any, Field(json_schema_extra=schema, default_factory=lambda: None)]
    return parameter.replace(annotation=empty, default=Field())
