"""Damage to valid files: flipped bits, cut and repeated regions, parts of other files, extreme numbers, nested values.

Everything is drawn from the `random.Random` that is given, so a seed names an input.
"""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

EXTREMES = (
    0,
    1,
    -1,
    2**7,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 - 1,
    2**53 + 1,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
TOKENS = (
    *(b"null", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"1e400", b"9" * 400, b"9" * 5000, b"0.5"),
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"\n", b"\t", b"\x00", b"\xff", b"\xef\xbb\xbf", b"[" * 3000),
    *(
        b'{"a":' * 3000,
        b"true",
        b"'",
        b"&a [*a]",
        b"*a",
        b"<<: ",
        b"!!python/object:os.system ",
        b"- " * 2000,
        b"nan",
        b"inf",
    ),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        4,
        2**31,
        2**63,
        -(2**63),
        10**30,
        10**400,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "a",
        "x" * 5000,
        "\x00",
        "\ud800",
        "1+30",
        "nan",
        "1e999",
        "9" * 400,
        "²",
        [],
        {},
        [[]],
        [None],
        [{}],
        {"a": 1},
    ),
    *([1, 2, 3], ["a", "b"], {"": None}, [[[[[[]]]]]]),
)
_LONGEST = 200  # bytes of a region, now and then more


def damaged(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """The content after one to five changes; `others` are files of which regions are copied into it."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        content = draw.choice(_CHANGES)(content, draw, others or [content])
    return content


def damaged_json(content: Any, draw: Random) -> bytes:
    """The text of a JSON value of which one to three parts were replaced, removed, repeated or nested.

    Parts nested in nested ones may be too deep for Python to copy or write; then nothing is changed.
    """
    root = [copy.deepcopy(content)]
    try:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            _change_value(root, draw)
        return json.dumps(root[0]).encode()
    except RecursionError:
        return json.dumps(content).encode()


def nested(draw: Random) -> Any:
    """A value nested at random, or very deep."""
    value = _value(draw)
    for _ in range(draw.choice((1, 3, 40, 400))):
        value = [value] if draw.random() < 0.5 else {draw.choice(("a", "tables", "shards", "plan")): value}
    return value


def _change_value(root: list[Any], draw: Random) -> None:
    """Change one value below `root`; deep ones are as likely as shallow ones."""
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [root]
    while pending:
        parent = pending.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        for key in keys:
            places.append((parent, key))
            if isinstance(parent[key], dict | list):
                pending.append(parent[key])
    parent, key = draw.choice(places)
    kind = draw.randrange(6)
    if kind == 0 and parent is not root:
        del parent[key]
    elif kind == 1 and isinstance(parent, list) and parent is not root:
        parent.extend([parent[key]] * draw.choice((1, 2, 50)))
    elif kind == 2 and isinstance(parent, dict):
        parent[draw.choice(("a", "name", "rows", "", "x" * 2000))] = _value(draw)
    elif kind == 3:
        parent[key] = nested(draw)
    elif kind == 4:
        parent[key] = copy.deepcopy(draw.choice(places)[0]) if draw.random() < 0.5 else draw.choice(EXTREMES)
    else:
        parent[key] = _value(draw)


def _value(draw: Random) -> Any:
    """One of `VALUES`, as a copy: later changes must reach neither these nor other inputs."""
    return copy.deepcopy(draw.choice(VALUES))


def _region(content: bytes, draw: Random) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    longest = len(content) if draw.random() < 0.1 else _LONGEST
    return start, min(len(content), start + draw.randrange(1, max(2, min(longest, len(content) + 1))))


def _flip(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    if not content:
        return b"\x00"
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _byte(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))]) + content[at + 1 :]


def _cut(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _without(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    start, end = _region(content, draw)
    return content[:start] + content[end:]


def _repeated(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    start, end = _region(content, draw)
    return content[:end] + content[start:end] * draw.choice((1, 1, 2, 100)) + content[end:]


def _spliced(content: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    start, end = _region(other, draw)
    at = draw.randrange(len(content) + 1)
    return content[:at] + other[start:end] + content[at + draw.choice((0, end - start)) :]


def _token(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    start, end = _region(content, draw)
    return content[:start] + draw.choice(TOKENS) + content[draw.choice((start, end)) :]


def _number(content: bytes, draw: Random, _: Sequence[bytes]) -> bytes:
    """A little-endian integer in place of as many bytes, or the digits of one in place of digits."""
    value = draw.choice(EXTREMES)
    digits = [at for at in range(min(len(content), 4000)) if content[at : at + 1].isdigit()]
    if digits and draw.random() < 0.5:
        at = draw.choice(digits)
        end = at
        while content[end : end + 1].isdigit():
            end += 1
        return content[:at] + str(value).encode() + content[end:]
    size = draw.choice((1, 2, 4, 8))
    at = draw.randrange(len(content) + 1)
    return content[:at] + (value % 2 ** (8 * size)).to_bytes(size, "little") + content[at + size :]


_CHANGES = (_flip, _flip, _byte, _cut, _without, _repeated, _spliced, _token, _number)
