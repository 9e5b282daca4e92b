"""The check of a rival's training settings."""

from dataclasses import asdict
from typing import Any


def require_positive(settings: Any, *, zero_allowed: tuple[str, ...] = ()) -> None:
    """Raise ValueError for a setting that is not above 0.

    Args:
        settings: a dataclass of numbers.
        zero_allowed: names that are not checked.
    """
    for name, value in asdict(settings).items():
        if value <= 0 and name not in zero_allowed:
            raise ValueError(f"{name} is {value}, but training needs it above 0; raise it")
