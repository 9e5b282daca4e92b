"""What Prefect's form makes of a flow's parameters: titles, choices, and bounds that it checks before anything starts.

Prefect draws the form from a schema that it derives from the flow's signature. As derived, its page drops bounds
that stand beside a type, and of an optional number it shows two tabs and, on a wrong value, "not valid under any of the
given schemas". Here bounds are where the page keeps them, and an optional field is an empty one.
"""

import inspect
from typing import Annotated, Any

from prefect import Flow
from pydantic import Field, TypeAdapter

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "pattern": ""}


def form(flow: Flow[..., Any]) -> Flow[..., Any]:
    """Give `flow` the signature that Prefect's form is drawn from; what a call takes and checks stays as it is."""
    parameters = [_drawn(each) for each in inspect.signature(flow.fn, eval_str=True).parameters.values()]
    vars(flow)["__signature__"] = inspect.Signature(parameters)
    return flow


def field_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of one type (or None): bounds below `allOf` and in words, None as the absence of a value."""
    schema = TypeAdapter(annotation).json_schema()
    for choice in schema.pop("anyOf", []):
        if choice["type"] != "null":
            schema |= choice
    bounds = {name: schema.pop(name) for name in _BOUNDS if name in schema}
    if not bounds:
        return schema
    said = ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in bounds.items() if _BOUNDS[name])
    described = f"{schema['description']} {said.capitalize()}." if said else schema["description"]
    return schema | {"allOf": [bounds], "description": described}


def _drawn(parameter: inspect.Parameter) -> inspect.Parameter:
    """With None as a default that the schema does not name: named, Prefect would no longer take an empty field."""
    schema = field_schema(parameter.annotation)
    if parameter.default is not None:
        return parameter.replace(annotation=Annotated[Any, Field(json_schema_extra=schema)])
    empty = Annotated[Any, Field(json_schema_extra=schema, default_factory=lambda: None)]
    return parameter.replace(annotation=empty, default=Field())
