"""Addresses below a folder inside of texts: paths, URIs and JSON that hold either."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BEGINS = r"(?:(?<=://)|(?<=:///)|(?<![\w.~%+@/\\-]))"
_ENDS = r"(?=$|[/\"'`<>)\]},;:&?#|\\\r\n])"  # neither `/home-2` nor `/home 2` is in `/home`


class Relocation:
    """Rewrites texts that name one of the old folders so that they name the new one.

    Attributes:
        needles: a text that names an old folder contains at least one of these.
    """

    def __init__(self, old: Sequence[Path], new: Path) -> None:
        self._new, self._new_quoted = str(new), _quoted(new)
        spellings = {text for path in old for text in (str(path), _quoted(path))}
        self._plain = {str(path) for path in old}
        self.needles = tuple(sorted(spellings | {json.dumps(str(path))[1:-1] for path in old}))
        found = sorted(spellings | {self._new, self._new_quoted}, key=len, reverse=True)
        names = "|".join(map(re.escape, found))
        self._pattern = re.compile(
            rf"(?P<file>(?<!\w)file://)(?P<uri>{names}){_ENDS}|{_BEGINS}(?P<path>{names}){_ENDS}"
        )

    def rewritten(self, text: str) -> str:
        """The text with every old address replaced, in JSON within JSON too; unchanged where it names none."""
        if not any(needle in text for needle in self.needles):
            return text
        if text[:1] in ("{", "[", '"'):
            try:
                content = json.loads(text)
            except ValueError:
                return self._pattern.sub(self._replace, text)
            replaced = self._walked(content)
            return text if replaced == content else json.dumps(replaced)
        return self._pattern.sub(self._replace, text)

    def _walked(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.rewritten(content)
        if isinstance(content, list):
            return [self._walked(each) for each in content]
        if isinstance(content, dict):
            return {name: self._walked(each) for name, each in content.items()}
        return content

    def _replace(self, match: re.Match[str]) -> str:
        found = match["uri"] or match["path"]
        if found in (self._new, self._new_quoted):  # of a rewriting that was interrupted
            return match[0]
        if match["file"]:
            return f"file://{self._new_quoted}"
        return self._new if found in self._plain else self._new_quoted


def _quoted(path: Path) -> str:
    """The path as it is in a URI."""
    return path.as_uri().removeprefix("file://")
