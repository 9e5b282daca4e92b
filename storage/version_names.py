"""Versions as people write them: `champion`, `3`, or MLflow's URI `models:/dreamshard.ads.a100-x8/3`.

An alias or a number alone is of the model in question, or of the only one.
"""

import re

ALIASES = ("champion", "challenger", "previous")
"""Of every registered model."""

WRITTEN = f"{', '.join(ALIASES)}, a number, or a URI such as models:/dreamshard.ads.a100-x8/3"
"""Ways to name a version, for messages."""

_URI = re.compile(r"models:/([^/@]+)[/@]([^/@]+)")


def model_and_name(version: str) -> tuple[str, str]:
    """The registered model of a reference, empty if it names none, and its number or alias."""
    match = _URI.fullmatch(version)
    return (match[1], match[2]) if match else ("", version)


def names_version(text: str) -> bool:
    """Whether a text is a reference: an alias, a number, or a URI with one of them."""
    _, name = model_and_name(text)
    return name in ALIASES or name.isdecimal()


def number_of(version: str) -> int:
    """The number in a reference: 3 of `models:/dreamshard.ads.a100-x8/3`.

    Raises:
        ValueError: it names no number.
    """
    _, name = model_and_name(version)
    if not name.isdecimal():
        raise ValueError(f"{version!r} has no number, so it is not one version for ever; give {WRITTEN}")
    return int(name)


def in_words(version: str) -> str:
    """A version for people: `dreamshard.ads.a100-x8 version 3`, `champion`."""
    model, name = model_and_name(version)
    return f"{model} {'version ' if name.isdecimal() else ''}{name}".strip()
