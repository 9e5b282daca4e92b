"""Versions as people write them: `champion`, `3`, or MLflow's URI `models:/dreamshard-a100-8/3`.

An alias or a number alone is of the registry's default model.
"""

import re
from dataclasses import dataclass

from dreamshard.training.config import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm

ALIASES = ("champion", "challenger", "previous")
"""Of every registered model."""

WRITTEN = f"{', '.join(ALIASES)}, a number, or a URI such as models:/dreamshard-a100-8/3"
"""What a person may write, for messages."""

_URI = re.compile(r"models:/([^/@]+)[/@]([^/@]+)")


@dataclass(frozen=True)
class VersionReference:
    """A version of a registered model.

    Attributes:
        model: its name; empty for the registry's default model.
        name: number or alias; any other text names no version.
    """

    model: str
    name: str

    @classmethod
    def of(cls, text: str) -> "VersionReference":
        """Read what a person wrote."""
        match = _URI.fullmatch(text)
        return cls(match[1], match[2]) if match else cls("", text)

    @property
    def is_valid(self) -> bool:
        """Whether the name is an alias or a number."""
        return self.name in ALIASES or self.is_number

    @property
    def is_number(self) -> bool:
        """Whether the name is a number."""
        return self.name.isascii() and self.name.isdigit()

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the model, by which its name begins."""
        before = self.model.partition("-")[0]
        return next((algorithm for algorithm in ALGORITHMS if algorithm == before), DEFAULT_ALGORITHM)

    @property
    def in_words(self) -> str:
        """The version for people: `dreamshard-a100-8 version 3`, `champion`."""
        named = f"version {self.name}" if self.is_number else self.name
        return f"{self.model} {named}".strip()

    def __str__(self) -> str:
        if not self.model:
            return self.name
        return f"models:/{self.model}{'/' if self.is_number else '@'}{self.name}"


def number_of(version: str) -> int:
    """The number in a reference: 3 of `models:/dreamshard-a100-8/3`.

    Raises:
        ValueError: it names no number.
    """
    reference = VersionReference.of(version)
    if not reference.is_number:
        raise ValueError(f"{version!r} has no number, so it is not one version for ever; give {WRITTEN}")
    return int(reference.name)


def in_words(version: str) -> str:
    """A version for people: `dreamshard-a100-8 version 3`."""
    return VersionReference.of(version).in_words
