"""Names that files, registries and commands are made of: algorithms, phases, and versions as people write them.

A version is `champion`, `3`, or MLflow's URI `models:/dreamshard-a100-8/3`; an alias or a number alone is of the registry's
default model.
"""

import re
from dataclasses import dataclass
from itertools import combinations
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


def is_named(name: str, hardware: str) -> bool:
    """Whether a hardware's description names a preset: `rtx2080ti` is in `NVIDIA GeForce RTX 2080 Ti x2, 2 ranks`.

    Each word of the name is in the description, where it may be several words. The links of an emulated testbed do not count,
    only the device that it measured.
    """
    if is_simulated(hardware):
        return hardware.partition(" ")[2] == name
    words = _words(hardware.partition(" for each device")[0])
    pairs = combinations(range(len(words) + 1), 2)
    spans = {"".join(words[first:last]) for first, last in pairs}
    return all(word in spans for word in _words(name))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


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
