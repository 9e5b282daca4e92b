"""What the fields of options are made of, beside their types and their names on the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

REQUIRED = object()
"""Marks an option that may be empty in the form but not on the command line."""


def in_form(title: str, description: str, **more: Any) -> Any:
    """How Prefect's form shows a field, and the field's bounds."""
    return Field(title=title, description=description, **more)


@dataclass(frozen=True)
class SchemaEntry:
    """An entry of a field's JSON schema, computed only when a form is drawn: `--help` must not wait for torch."""

    name: str
    value: Callable[[], Any]

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the entry to what pydantic derives from the type."""
        return handler(core) | {self.name: self.value()}
