"""Error messages as users read them: a snapshot file for each package, which `make messages` renews."""

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SNAPSHOTS = Path(__file__).parents[1] / "messages"
IS_RENEWED = bool(os.environ.get("RENEW_MESSAGES"))
_CHANGING = {  # from run to run
    r"/\S*?pytest-of-[^/\s]+/pytest-\d+(/popen-gw\d+)?/[^/\s]*?\d+\b": "TEMPORARY",
    rf"\b{re.escape(socket.gethostname())}\b": "HOST",
    r"\b(m-)?[0-9a-f]{8,}\b": "ID",
    r"\d{9,}": "NUMBER",
}


class Messages:
    """`with messages(ValueError):` expects an error, whose message is to be that of the snapshot."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def __call__(self, kind: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        """As `pytest.raises`."""
        with pytest.raises(kind) as caught:
            yield caught
        text = str(caught.value)
        for pattern, name in _CHANGING.items():
            text = re.sub(pattern, name, text)
        self.said.append(text)

    def compare(self, node: str) -> None:
        """Compare with the snapshot of a test, or renew that."""
        folder, name = node.removeprefix("tests/").split("/", 1)
        file = SNAPSHOTS / f"{folder}.json"
        kept = json.loads(file.read_text()) if file.is_file() else {}
        if IS_RENEWED:
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(kept | {name: self.said}, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        else:
            assert self.said == kept.get(name), "if the new message is right, run `make messages`"
