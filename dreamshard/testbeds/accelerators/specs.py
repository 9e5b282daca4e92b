"""Accelerators by name."""

import re

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.nvidia_specs import (
    A100,
    B200,
    B300,
    GB200,
    GB300,
    H100,
    H200,
    L40S,
    RTX2080TI,
    RTX_PRO_6000,
    V100,
)

__all__ = [
    "A100",
    "B200",
    "B300",
    "DEFAULT_SPEC",
    "GB200",
    "GB300",
    "H100",
    "H200",
    "L40S",
    "RTX2080TI",
    "RTX_PRO_6000",
    "SPECS",
    "V100",
    "AcceleratorSpec",
    "accelerator",
    "spec_of",
]

SPECS: dict[str, AcceleratorSpec] = {
    spec.name: spec for spec in (RTX2080TI, V100, A100, H100, H200, B200, B300, GB200, GB300, L40S, RTX_PRO_6000)
}
"""Presets by name."""

DEFAULT_SPEC = RTX2080TI.name
"""The paper's device."""


def accelerator(name: str) -> AcceleratorSpec:
    """The preset called `name`.

    Raises:
        ValueError: there is none; the message lists all names.
    """
    if name not in SPECS:
        raise ValueError(f"there is no accelerator {name!r} to simulate; choose one of {sorted(SPECS)}")
    return SPECS[name]


def spec_of(device: str) -> AcceleratorSpec:
    """The preset that matches the model reported by a device's driver, else the default one."""
    return spec_named_in(device) or SPECS[DEFAULT_SPEC]


def spec_named_in(device: str) -> AcceleratorSpec | None:
    """The preset that matches the model reported by a device's driver; None if none does."""
    words = re.split(r"[^a-z0-9]+", device.lower())
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return next((spec for name, spec in SPECS.items() if name.replace("_", "") in runs), None)
