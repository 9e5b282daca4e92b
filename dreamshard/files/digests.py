"""Content identities: the first hexadecimal digits of a SHA-256."""

import hashlib
import json
from typing import Any

DIGITS = 16


def digest(content: str | bytes, digits: int = DIGITS) -> str:
    """The first hexadecimal digits for bytes, or for text as UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:digits]


def json_digest(content: Any, **options: Any) -> str:
    """The digits for JSON content; `options` of `json.dumps` change the digits."""
    return digest(json.dumps(content, **options))
