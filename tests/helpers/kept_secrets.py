"""Recognisable secrets, and the search for them in whatever a run has written."""

import base64
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

LOGIN = "team:login-that-nobody-may-read"
STORE_KEY = "store-key-that-nobody-may-read"
_SHARED = b"that-nobody-may-read"
_BASIC = base64.b64encode(LOGIN.encode())


def secrets_in(content: bytes) -> set[str]:
    """Names of the secrets that a file, or text, gives away."""
    found = {content[max(0, at - 25) : at + len(_SHARED)].decode(errors="replace") for at in _positions(content)}
    return found | ({"login in base64"} if _BASIC in content else set())


def given_away(parts: Iterable[tuple[str, bytes]]) -> dict[str, set[str]]:
    """Where a secret can be read; which ones."""
    found = {name: secrets_in(inner) for whole, content in parts for name, inner in _readable(whole, content)}
    return {name: secrets for name, secrets in found.items() if secrets}


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder that can still be read."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


def _positions(content: bytes) -> Iterator[int]:
    at = content.find(_SHARED)
    while at >= 0:
        yield at
        at = content.find(_SHARED, at + 1)


def _readable(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The content, and what is compressed in it."""
    yield name, content
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield from ((f"{name}/{inner}", archive.read(inner)) for inner in archive.namelist())
    elif name.endswith(".parquet"):
        schema = pq.read_schema(io.BytesIO(content))
        texts = [field.name for field in schema if "string" in str(field.type)]
        rows = pq.read_table(io.BytesIO(content), columns=texts).to_pydict()
        yield f"{name} as text", f"{schema.metadata} {rows}".encode()
