"""Which testbeds a name stands for, as far as a machine without them can tell."""

from pathlib import Path

from dreamshard.hardware.accelerator import DEFAULT_PRESET, PRESETS, is_hardware_file, read_hardware
from dreamshard.names import SIMULATED


def is_testbed(name: str, kind: str, hardware: str) -> bool:
    """Whether a testbed of this kind and hardware may be the one called `name`, as far as another machine can tell.

    `auto` and a custom testbed may be anything; only the worker knows the devices of `cluster` and `emulated`.
    """
    named_kind, _, preset = name.partition(":")
    if named_kind not in ("cluster", "emulated", SIMULATED):
        return True
    if named_kind == SIMULATED:
        preset = preset or DEFAULT_PRESET
    if is_hardware_file(preset) and Path(preset).is_file():
        preset = read_hardware(Path(preset)).name  # with a digest of its figures
    elif preset not in PRESETS:
        return kind == named_kind
    return kind == named_kind and hardware.endswith(f" {preset}")
