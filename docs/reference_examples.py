"""Tells the reference that the doctests at the end of a docstring are its examples."""

from textwrap import indent
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Puts them into a section of Google's style, which the parser shows as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every class and function."""
        if obj.docstring and "\n>>> " in obj.docstring.value:
            text, _, example = obj.docstring.value.partition("\n>>> ")
            obj.docstring.value = f"{text}\nExamples:\n{indent('>>> ' + example, '    ')}"
