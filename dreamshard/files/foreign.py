"""Content that other people wrote: whatever damaged content makes a library raise becomes one sentence."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from dreamshard.files.text import first_line

MOST_ROWS = 2**40
MOST_COLUMNS = 2**12
"""Of a table; published dims are at most some hundred."""
MOST_DEVICES = 4096
"""Also of one host."""
MOST_MEMORY_GB = 100_000
"""GiB of one device."""

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100


class InputError(ValueError):
    """A sentence for people on wrong content, which `reading` passes unchanged."""


@contextmanager
def reading(source: object, problem: str, advice: str) -> Iterator[None]:
    """Raise any error of the block, except an `InputError`, as one `InputError`, with the original as its cause.

    Args:
        source: the file or request, as the message names it.
        problem: e.g. `is not a plan`.
        advice: what to do: `give ...`.
    """
    try:
        yield
    except InputError:
        raise
    except ValidationError as error:
        cause = error.errors()[-1].get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause from error
        raise InputError(f"{source} {problem} ({_validation_problem(error)}); {advice}") from error
    except Exception as error:
        raise InputError(
            f"{source} {problem} ({type(error).__name__}: {first_line(error).split('. ')[0]}); {advice}"
        ) from error


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
