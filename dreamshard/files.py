"""Files and what is in them: atomic writing, identities of content, content that other people wrote, and text for people."""

import hashlib
import json
import os
import re
import reprlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

MOST_ROWS = 2**40
MOST_COLUMNS = 2**12
"""Of a table; published dims are at most some hundred."""
MOST_DEVICES = 4096
"""Also of one host."""
MOST_MEMORY_GB = 100_000
"""GiB of one device."""

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100

_LOGIN = re.compile(r"(:/{1,2})[^\s/?#'\"]*@")
_QUERY = re.compile(r"(?<=:/)([^\s?#'\"]*)\?[^\s#'\"]+")


def digest(content: str | bytes) -> str:
    """Identity of bytes, or of text as UTF-8: 16 hexadecimal digits of a SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def json_digest(content: Any, **options: Any) -> str:
    """Identity of JSON content; `options` of `json.dumps` change the digits."""
    return digest(json.dumps(content, **options))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path to write, in a folder that is made; it becomes `target` when the block ends without an error.

    A killed writer leaves at most this file, whose name begins with a dot, so that readers of the folder skip it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class InputError(ValueError):
    """A sentence for people on wrong content, which `reading` passes unchanged."""


@contextmanager
def reading(source: object, problem: str, advice: str) -> Iterator[None]:
    """Raise any error of the block, except an `InputError`, as an `InputError`: `plan.json is not a plan (...); give ...`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {first_line(error).split('. ')[0]}"
        if isinstance(error, ValidationError):
            what = _validation_problem(error)
        raise InputError(f"{source} {problem} ({what}); {advice}") from error


def brief(value: object) -> str:
    """A value of a file as a message shows it: all of it, or its beginning and end."""
    return _SHOWN.repr(value)


def _validation_problem(error: ValidationError) -> str:
    """The place of wrong content, the value there and the fault."""
    wrong = error.errors()[-1]  # of a union's reasons the last one
    if wrong["type"] == "value_error":
        return str(wrong["ctx"]["error"])
    where = ".".join(str(part) for part in wrong["loc"] if "[" not in str(part))
    value = "" if "missing" in wrong["type"] else f"{brief(wrong['input'])}: "
    return f"{where}: {value}{wrong['msg'][:1].lower()}{wrong['msg'][1:]}"


def gib(num_bytes: int) -> str:
    """`0.25 GiB`, `141 GiB`, `59,605 GiB`."""
    size = num_bytes / 2**30
    return f"{size:,.0f} GiB" if size >= 1000 else f"{size:.3g} GiB"


def counted(number: int, noun: str) -> str:
    """`1 table`, `2 tables`."""
    return f"{number} {noun}{'s' * (number != 1)}"


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
