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
    """`body` with the fields of its first parameter, an options type, in that parameter's place.

    Prefect and Typer read the signature, so both see the fields; an empty text for an option that may be None is None.

    Args:
        body: takes an options type, then possibly more parameters.
        parameter: turns a field into the parameter to show, or None to hide it, so that its default holds.
    """
    first, *others = inspect.signature(body, eval_str=True).parameters.values()
    shown = [each for each in map(parameter, option_parameters(first.annotation)) if each is not None]
    names = {each.name for each in shown}
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
    signature = inspect.Signature([*shown, *keywords])

    @wraps(body)
    def call(*args: Any, **kwargs: Any) -> Result:
        values = signature.bind(*args, **kwargs).arguments
        filled = {name: value for name, value in values.items() if name in names and value != ""}
        return body(first.annotation(**filled), **{name: values[name] for name in values.keys() - names})

    vars(call).update(
        __signature__=signature, __annotations__={each.name: each.annotation for each in signature.parameters.values()}
    )
    del vars(call)["__wrapped__"]  # whose signature Prefect would read instead
    return call


def option_parameters(options: type) -> list[inspect.Parameter]:
    """The fields of an options type as parameters, with all that their annotations say."""
    hints = get_type_hints(options, include_extras=True)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Parameter(
            field.name,
            kind,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)
    ]
