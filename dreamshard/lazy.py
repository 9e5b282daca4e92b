"""Packages that import what they offer when it is first used: a program that only locks files needs no torch."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`.

    Args:
        package: its `__name__`.
        modules: what it offers -> the module in it that has it.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(import_module(package), name, value)
        return value

    return find
