"""Content that other people wrote, and stores that others run: their errors, and the largest numbers accepted from them.

Whatever damaged content makes a library raise becomes one sentence. An unreachable store stays an error of its own kind.
"""

import json
import reprlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml
from pydantic import ValidationError

from dreamshard.files.text import first_line

MOST_ROWS = 2**54
MOST_COLUMNS = 2**12
"""Of a table; published dims are at most some hundred."""
MOST_DEVICES = 4096
"""Also of one host."""
MOST_MEMORY_GB = 100_000
"""GiB of one device."""

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxdict = _SHOWN.maxtuple = 8
_SHOWN.maxlevel = 3

_STORE_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
    "aiohttp": ("ClientError",),
}
_PERMANENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


class InputError(ValueError):
    """A sentence for people on wrong content, which `reading` passes unchanged."""


@contextmanager
def reading(source: object, problem: str, advice: str) -> Iterator[None]:
    """Raise any error of the block as one `InputError`, with the original as its cause.

    An `InputError` and an error of an unreachable store pass unchanged.

    Args:
        source: the file or request, as the message names it.
        problem: for the message: `is not a plan`.
        advice: why it matters, and what to do: `so it cannot be used; give ...`.
    """
    try:
        yield
    except InputError:
        raise
    except ValidationError as error:
        own = error.errors()[-1].get("ctx", {}).get("error")
        if isinstance(own, InputError):
            raise own from error
        raise InputError(f"{source} {problem} ({validation_problem(error)}), {advice}") from error
    except Exception as error:
        if isinstance(error, _of_stores()):
            raise
        raise InputError(f"{source} {problem} ({type(error).__name__}: {first_line(error)}), {advice}") from error


def json_content(text: str | bytes, source: object, problem: str, advice: str) -> Any:
    """The value of a JSON text whose numbers are finite; arguments and errors as for `reading`."""
    with reading(source, problem, advice):
        return json.loads(text, parse_constant=_refuse)


def yaml_content(text: str | bytes, source: object, problem: str, advice: str) -> Any:
    """The value of a YAML text, of plain types only; arguments and errors as for `reading`."""
    with reading(source, problem, advice):
        return yaml.safe_load(text)


def brief(value: object) -> str:
    """A value of a file as a message shows it: all of it, or its beginning and end."""
    return _SHOWN.repr(value)


def validation_problem(error: ValidationError) -> str:
    """Where content is wrong, the value there and what is wrong with it."""
    wrong = error.errors()[-1]  # of a union's reasons the last one
    if wrong["type"] == "value_error":
        return str(wrong["ctx"]["error"])
    where = ".".join(str(part) for part in wrong["loc"] if "[" not in str(part))
    return f"{where}: {brief(wrong['input'])}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}"


def store_failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Errors of a store that is unreachable or denies access, and `others`, for an `except`.

    Call it in the `except` clause itself: the library that raised may only just have been loaded.
    """
    return (*others, OSError, *_of_stores())


def may_pass(error: object) -> bool:
    """Whether a disk, a network or a store raised an error that a retry may avoid."""
    if isinstance(error, OSError):
        return not isinstance(error, _PERMANENT)
    if not isinstance(error, _of_stores()):
        return False
    response = getattr(error, "response", None)  # of botocore's `ClientError`
    if isinstance(response, Mapping):
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
    return "Credential" not in type(error).__name__


def _of_stores() -> tuple[type[BaseException], ...]:
    """Errors of the libraries behind fsspec that are loaded; none needs to be installed."""
    loaded = [(sys.modules[module], names) for module, names in _STORE_ERRORS.items() if module in sys.modules]
    return tuple(getattr(module, name) for module, names in loaded for name in names)


def _refuse(constant: str) -> None:
    raise ValueError(f"the number {constant} is not finite")
