"""Names that files, registries and commands are made of: algorithms, phases, and versions as people write them.

A version is `3` or `champion`; `paper:3` and `paper:champion` are of another algorithm than `dreamshard`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Algorithm = Literal["dreamshard", "paper", "autoshard"]
"""What can be trained: this project's networks and search, DreamShard as published, AutoShard as published."""

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

DEFAULT_ALGORITHM: Algorithm = "dreamshard"

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
"""Of a training step on every device, in the order in which they run; the last axis of a stacked cost tensor."""

NUM_BINS = 17
"""Access-count bins: (0,1], (1,2], (2,4], ... (16384,32768], (32768, inf)."""

SIMULATED = "simulated"
"""The testbed that computes costs without any device; the hardware that it states starts with this name."""


def is_simulated(hardware: str) -> bool:
    """Whether costs of this hardware were computed without any device."""
    return hardware.startswith(f"{SIMULATED} ")


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
