"""The options of `up` and `deploy` for the scheduled flows: which tables they look at, and what they train for."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from flows.servers.scheduled_setting import schedule_fields

Result = TypeVar("Result")

Given = Mapping[str, str | None]
"""Text of each option by the name of its field; None where it was not given."""

NotifyOption = Annotated[
    str | None,
    typer.Option(
        "--notify",
        help="Who is notified of failed retrainings: mailtos://..., https://... or TYPE/NAME of a notification block.",
        envvar="DREAMSHARD_NOTIFY",
        show_envvar=True,
    ),
]

_PANEL = "What the scheduled flows retrain for (kept; an empty text unsets it)"


def with_schedule(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command whose first parameter is `given: Given` an option for each field of the schedule.

    They are texts, so that an empty one unsets what the home kept.
    """
    _, *others = inspect.signature(command, eval_str=True).parameters.values()
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    field.option,
                    help=f"{field.help} [env: {field.variable}]",
                    rich_help_panel=_PANEL,
                    show_default=False,
                ),
            ],
        )
        for field in schedule_fields()
    ]
    names = {option.name for option in options}
    keywords = [other.replace(kind=inspect.Parameter.KEYWORD_ONLY) for other in others]
    signature = inspect.Signature([*keywords, *options])

    @wraps(command)
    def call(**values: Any) -> Result:
        given = {name: value for name, value in values.items() if name in names}
        return command(given, **{name: value for name, value in values.items() if name not in names})

    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    vars(call).update(__signature__=signature, __annotations__=annotations)
    del vars(call)["__wrapped__"]
    return call
