"""Files: atomic writing, text for people, content of other people, and content identities."""

import hashlib
import json
from typing import Any


def digest(content: str | bytes) -> str:
    """Identity of bytes, or of text as UTF-8: 16 hexadecimal digits of a SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def json_digest(content: Any, **options: Any) -> str:
    """Identity of JSON content; `options` of `json.dumps` change the digits."""
    return digest(json.dumps(content, **options))
