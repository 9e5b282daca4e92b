"""The fields of what is done once something was trained: compare and promote versions, remove old files.

As `fields` has those of the chain.
"""

import re
from typing import Annotated

import typer

from flows.forms.field_parts import in_form


def _days(text: str | int) -> int:
    """Read `90d` or `90`."""
    number = re.fullmatch(r"0*([1-9]\d{0,4})d?", str(text).strip())
    if number is None:
        raise typer.BadParameter(f"{text!r} is not a number of days; give at least 1d, for example 90d")
    return int(number[1])


Versions = Annotated[
    list[str],
    in_form(
        "Versions",
        "Who is compared: numbers of versions, champion, challenger, previous, those of another algorithm (paper:3), "
        "cost_greedy, dreamshard_policy, rules of thumb (e.g. lookup_greedy), published rivals. The first is what gains "
        "are over.",
        min_length=1,
        examples=[["champion", "challenger"], ["paper:champion", "champion"]],
    ),
    typer.Argument(
        metavar="VERSION...",
        help="Versions (3, champion, paper:3, ...), cost_greedy, dreamshard_policy, rules of thumb, published rivals; gains "
        "are over the first.",
    ),
]
Version = Annotated[
    str | None,
    in_form(
        "Version",
        "Makes this version (or alias, e.g. previous) champion at once. Empty: the newest placer of the fields "
        "below becomes champion if its evaluation says so.",
        examples=["previous", "3", "paper:3"],
    ),
    typer.Argument(
        help="A version or alias (3, paper:3; previous undoes): champion of its algorithm at once, without the options."
    ),
]
Reason = Annotated[
    str | None,
    in_form("Reason", "Why this version becomes champion; recorded on it. Empty: by hand."),
    typer.Option("--reason", help="Why VERSION becomes champion; recorded on it."),
]
OlderThanDays = Annotated[
    int,
    in_form("Older than", "Days since a file was last written after which it may be removed.", ge=1, le=36_500),
    typer.Option("--older-than", parser=_days, metavar="DAYS", help="Days since a file was last written, e.g. 90d."),
]
Delete = Annotated[
    bool,
    in_form("Delete", "Removes the files for good. Off: only shows what would be removed."),
    typer.Option("--yes", help="Remove the files for good; without this, nothing is removed."),
]
Rivals = Annotated[
    bool,
    in_form("Published rivals", "Compare the published rivals as well; `rnn` learns first, by measuring placements."),
    typer.Option("--rivals", help="Compare the published rivals as well; `rnn` learns first, by measuring placements."),
]
