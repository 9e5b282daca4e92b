"""Reading files and requests of other people: whatever damaged content makes a library raise becomes one sentence."""

import json
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dreamshard.files.store_errors import is_of_store
from dreamshard.formatting import first_line

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxdict = _SHOWN.maxtuple = 8
_SHOWN.maxlevel = 3


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
        if is_of_store(error):
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


def file_bytes(path: Path, problem: str, advice: str) -> bytes:
    """The content of a file; arguments and errors as for `reading`."""
    with reading(path, problem, advice):
        return path.read_bytes()


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


def _refuse(constant: str) -> None:
    raise ValueError(f"the number {constant} is not finite")
