"""The one door for content that others wrote, which may be damaged or made to do harm: files, texts, requests.

Libraries raise errors of many kinds on damaged content, and not always the same ones in each release. So whatever is read
from elsewhere is read inside `reading`, which turns them all into one sentence. What content may ask for is bounded
(`bounds`) before anything of that size is made.
"""

import json
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from dreamshard.files.bounds import (
    LONGEST_PLAIN,
    LONGEST_TEXT,
    MOST_LEVELS,
    MOST_TEXT_BYTES,
    MOST_VALUES,
    MOST_YAML_BYTES,
)
from dreamshard.files.store_errors import is_of_store
from dreamshard.formatting import first_line

_LARGEST_INTEGER = 2**63
_ALLOCATION = "alloc"  # in the message of torch's RuntimeError where memory runs out
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxdict = _SHOWN.maxtuple = 8
_SHOWN.maxlevel = 3


class InputError(ValueError):
    """What is wrong with content that others wrote, as a sentence for people, which `reading` leaves as it is."""


@contextmanager
def reading(source: object, problem: str, advice: str) -> Iterator[None]:
    """Raise what damaged content makes a library raise in the block as one `InputError`.

    An `InputError` of the block passes unchanged; any other ValueError, such as one of `int("x")`, does not. Errors of a
    store that cannot be reached pass too, and so does all that is no `Exception`, such as an interrupt. The original error
    is the cause, for `--debug`.

    Args:
        source: the file or request, as the message names it.
        problem: what the message says of it: `is not a plan`.
        advice: why it matters, and what to do: `so it cannot be used; give ...`.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if is_of_store(error):
            raise
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _ALLOCATION in str(error)):
            raise InputError(
                f"{source} {problem}: it asks for more memory than there is ({_cause(error)}), {advice}"
            ) from error
        raise InputError(f"{source} {problem} ({_cause(error)}), {advice}") from error


def json_content(text: str | bytes, source: object, problem: str, advice: str) -> Any:
    """The value of a JSON text, within the bounds of `bounds`; arguments as for `reading`.

    Raises:
        InputError: it is no JSON, has numbers that are not finite or exceed 64 bits, or is too large or too deep.
    """
    _check_size(len(text), MOST_TEXT_BYTES, source, problem, advice)
    with reading(source, problem, advice):
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        _check_number(text, source, problem, advice)
        content = json.loads(text)
        _check_values(content, source, problem, advice)
    return content


def yaml_content(text: str | bytes, source: object, problem: str, advice: str) -> Any:
    """The value of a YAML text, of plain types only, within the bounds of `bounds`; arguments as for `reading`.

    Raises:
        InputError: as for `json_content`.
    """
    _check_size(len(text), MOST_YAML_BYTES, source, problem, advice)
    with reading(source, problem, advice):
        _check_nesting(text, source, problem, advice)
        content = yaml.load(text, Loader=_YAML)
        _check_values(content, source, problem, advice)
    return content


def file_bytes(path: Path, problem: str, advice: str, most: int = MOST_TEXT_BYTES, *, source: object = None) -> bytes:
    """The content of a file of at most `most` bytes; other arguments as for `reading`, the source being `path` by default.

    Raises:
        InputError: it is larger, or cannot be read.
    """
    with reading(source or path, problem, advice), path.open("rb") as file:
        content = file.read(most + 1)
        _check_size(len(content), most, path, problem, advice)
        return content


def file_text(path: Path, problem: str, advice: str, most: int = MOST_TEXT_BYTES) -> str:
    """The content of a file as UTF-8, with or without a byte order mark; arguments and errors as for `file_bytes`."""
    content = file_bytes(path, problem, advice, most)
    with reading(path, problem, advice):
        return content.decode("utf-8-sig")


def brief(value: object) -> str:
    """A value of a file as a message shows it: all of it, or its beginning and end."""
    return _SHOWN.repr(value)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _check_size(size: int, most: int, source: object, problem: str, advice: str) -> None:
    if size > most:
        raise InputError(f"{source} {problem}: it has more than {most:,} bytes, {advice}")


def _check_number(text: str, source: object, problem: str, advice: str) -> None:
    """Refuse a JSON text of too many values before Python makes objects of them, of 64 bytes for `{}`."""
    if _most_values(text) > MOST_VALUES and _most_values(_QUOTED.sub("", text)) > MOST_VALUES:
        raise InputError(f"{source} {problem}: it holds more than {MOST_VALUES:,} values, {advice}")


def _most_values(text: str) -> int:
    return 1 + sum(map(text.count, ",:[{"))


def _check_nesting(text: str | bytes, source: object, problem: str, advice: str) -> None:
    """Refuse long numbers, and deep YAML by its events: composing it would recurse, in C without a bound of its own."""
    level = 0
    for event in yaml.parse(text, Loader=_YAML):
        is_plain = isinstance(event, yaml.ScalarEvent) and (event.implicit[0] or event.tag)
        if is_plain and len(event.value) > LONGEST_PLAIN:
            long = f"a value of {len(event.value):,} characters without quotes"
            raise InputError(f"{source} {problem}: it holds {long}, {advice}")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise InputError(_TOO_DEEP.format(source=source, problem=problem, advice=advice))


def _check_values(content: Any, source: object, problem: str, advice: str) -> None:
    """Check level by level: how many values there are, how deep, and that each can be used and shown."""
    level, seen = [content], 1
    for _ in range(MOST_LEVELS + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif (wrong := _unusable(value)) is not None:
                raise InputError(f"{source} {problem}: it holds {wrong}, {advice}")
            if seen + len(below) > MOST_VALUES:
                raise InputError(f"{source} {problem}: it holds more than {MOST_VALUES:,} values, {advice}")
        if not below:
            return
        level, seen = below, seen + len(below)
    raise InputError(_TOO_DEEP.format(source=source, problem=problem, advice=advice))


_TOO_DEEP = f"{{source}} {{problem}}: it nests values more than {MOST_LEVELS} deep, {{advice}}"


def _unusable(value: Any) -> str | None:
    """What is wrong with a single value."""
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            return f"a text of {len(value):,} characters"
        return (
            None if value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value) else "half a character"
        )
    if isinstance(value, int):
        return None if -_LARGEST_INTEGER <= value < _LARGEST_INTEGER else "an integer of more than 64 bits"
    return f"the number {value}" if isinstance(value, float) and not isfinite(value) else None


_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_PLAIN: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MERGE = "tag:yaml.org,2002:merge"


class _YAML(_PLAIN):  # type: ignore[misc]  # the base has no types
    """YAML of plain types, in which merges (`<<`) bring at most `MOST_VALUES` keys: merges of merges multiply."""

    _merged = 0

    def flatten_mapping(self, node: Any) -> None:
        """Count what is merged, the innermost first, before it is copied."""
        for key, value in node.value:
            if key.tag == _MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(source, yaml.MappingNode):
                        self.flatten_mapping(source)
                        self._merged += len(source.value)
                        if self._merged > MOST_VALUES:
                            raise yaml.YAMLError(f"it merges more than {MOST_VALUES:,} values")
        super().flatten_mapping(node)
