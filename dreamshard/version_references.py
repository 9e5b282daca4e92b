"""How versions in a registry are written: `3` and `champion`, and `paper:3` and `paper:champion` of another algorithm.

Without a name of an algorithm, a reference is to a version of `dreamshard`. This module neither knows which versions exist
nor imports torch.
"""

from dataclasses import dataclass

from dreamshard.names import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm

ALIASES = ("champion", "challenger", "previous")
"""Of versions of each algorithm."""

WRITTEN = f"a number, {', '.join(ALIASES)}, or one of these after the name of another algorithm, e.g. paper:3"
"""What a person may write, for messages."""


@dataclass(frozen=True)
class VersionReference:
    """A version of an algorithm.

    Attributes:
        algorithm: whose version it is.
        name: number or alias; any other text names no version.
    """

    algorithm: Algorithm
    name: str

    @classmethod
    def of(cls, text: str) -> "VersionReference":
        """Read what a person wrote; an algorithm's name alone stands for its champion."""
        before, colon, after = text.partition(":")
        for algorithm in ALGORITHMS:
            if before == algorithm:
                return cls(algorithm, after if colon else "champion")
        return cls(DEFAULT_ALGORITHM, text)

    @property
    def is_valid(self) -> bool:
        """Whether the name is an alias or a number."""
        return self.name in ALIASES or self.is_number

    @property
    def is_number(self) -> bool:
        """Whether the name is a number."""
        return self.name.isascii() and self.name.isdigit()

    @property
    def in_words(self) -> str:
        """The placer of the version in plans: `dreamshard 3`, `paper champion`."""
        return f"{self.algorithm} {self.name}"

    def __str__(self) -> str:
        return self.name if self.algorithm == DEFAULT_ALGORITHM else f"{self.algorithm}:{self.name}"


def number_of(version: str) -> int:
    """The number in a reference: 3 of `3` and of `paper:3`.

    Raises:
        ValueError: it names no number.
    """
    reference = VersionReference.of(version)
    if not reference.is_number:
        raise ValueError(f"{version!r} has no number, so it is not one version for ever; give {WRITTEN}")
    return int(reference.name)
