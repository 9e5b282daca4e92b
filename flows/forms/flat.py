"""Functions of one options object, called with its fields as parameters of their own."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


def flattened(
    body: Callable[..., Result], parameter: Callable[[inspect.Parameter], inspect.Parameter | None]
) -> Callable[..., Result]:
    """Replace the first parameter of `body`, an options type, by the fields of that type.

    Prefect and Typer read the signature, so both see the fields. An empty text leaves an optional field empty.

    Args:
        body: takes an options type, then possibly more parameters.
        parameter: turns a field into the parameter to show, or None to hide it, so that its default holds.
    """
    first, *others = inspect.signature(body, eval_str=True).parameters.values()
    shown = list(filter(None, map(parameter, option_parameters(first.annotation))))
    names = {field.name for field in shown}
    optional = {field.name for field in fields(first.annotation) if field.default is None}
    keywords = [other.replace(kind=inspect.Parameter.KEYWORD_ONLY) for other in others]
    signature = inspect.Signature([*shown, *keywords])

    @wraps(body)
    def call(*args: Any, **kwargs: Any) -> Result:
        values = signature.bind(*args, **kwargs).arguments
        empty = {name for name in optional & values.keys() if values[name] == ""}
        filled = {name: value for name, value in values.items() if name in names - empty}
        return body(first.annotation(**filled), **{name: values[name] for name in values.keys() - names})

    annotations = {name: field.annotation for name, field in signature.parameters.items()}
    vars(call).update(__signature__=signature, __annotations__=annotations)
    del vars(call)["__wrapped__"]  # whose signature Prefect would read instead
    return call


def option_parameters(options: type) -> list[inspect.Parameter]:
    """The fields of an options type as parameters, with all that their annotations say; required ones first."""
    hints = get_type_hints(options, include_extras=True)
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    defaults = {field.name: empty if field.default is MISSING else field.default for field in fields(options)}
    ordered = sorted(defaults, key=lambda name: defaults[name] is not empty)
    return [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in ordered]
