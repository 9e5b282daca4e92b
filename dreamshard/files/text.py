"""Text for people: sizes, lists of names and causes of errors."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_LOGIN = re.compile(r"(:/{1,2})[^\s/?#'\"]*@")
_QUERY = re.compile(r"(?<=:/)([^\s?#'\"]*)\?[^\s#'\"]+")


def gib(num_bytes: int) -> str:
    """`0.25 GiB`, `141 GiB`, `59,605 GiB`."""
    size = num_bytes / 2**30
    return f"{size:,.0f} GiB" if size >= 1000 else f"{size:.3g} GiB"


def shown(names: Sequence[Any]) -> str:
    """The first five names for a message, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(str, names[:5])) + more


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, with the name most like it; empty without one."""
    close = get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def without_passwords(text: str) -> str:
    """The text with `...` in place of secrets in its addresses: `postgresql://...@HOST`, `https://HOST/FILE?...`.

    All of a query may be secret, such as the signature of a cloud's address.
    """
    return _QUERY.sub(r"\1?...", _LOGIN.sub(r"\1...@", text))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters, or its type if it has no message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


FOR_PEOPLE = (ValueError, OSError, RuntimeError)
"""Errors with a sentence for people: the event, why it matters, what to do."""


def error_sentence(error: BaseException) -> str:
    """An error on one line, without passwords: its message, after its type if the message is not for people."""
    message = without_passwords(" ".join(str(error).split()))
    return message if isinstance(error, FOR_PEOPLE) and message else f"{type(error).__name__}: {message}".rstrip(": ")
