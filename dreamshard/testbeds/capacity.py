"""What a testbed's devices hold: the kind of device that costs come from, and its memory."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.testbeds.base import Testbed
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.simulated import SimulatedTestbed

TABLES_SHARE = 7 / 8
"""Of an accelerator's memory for tables; the rest is for lookups, pooled vectors and the dense model."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """One device of a testbed.

    Attributes:
        kind: a GPU, a rank on the CPU, a model of an accelerator, or unknown for a testbed of one's own.
        memory_bytes: of one device; on the CPU, the machine's shared out; None if unknown.
        spec: figures of the accelerator; None on the CPU, and where it has no preset.
    """

    kind: Literal["gpu", "cpu", "simulated", "unknown"]
    memory_bytes: int | None = None
    spec: AcceleratorSpec | None = None


def capacity_of(testbed: Testbed, num_devices: int) -> Capacity:
    """The capacity of each of the testbed's devices; a testbed of one's own may state `memory_bytes`."""
    if isinstance(testbed, SimulatedTestbed):
        return Capacity(kind="simulated", memory_bytes=testbed.spec.memory_bytes, spec=testbed.spec)
    if isinstance(testbed, ClusterTestbed):
        gpu = testbed.layout.ranks[0].gpu
        if testbed.device_type == "cuda" and gpu is not None:  # this host may have none
            return Capacity(kind="gpu", memory_bytes=gpu.memory_bytes, spec=preset_of(gpu.model))
        per_host = min(num_devices, testbed.layout.devices_per_host)
        return Capacity(kind="cpu", memory_bytes=machine_memory_bytes() // per_host)
    if isinstance(testbed, EmulatedTestbed):
        if testbed.device_type == "cpu":
            return Capacity(kind="cpu", memory_bytes=machine_memory_bytes())
        properties = torch.cuda.get_device_properties(0)
        return Capacity(kind="gpu", memory_bytes=int(properties.total_memory), spec=preset_of(properties.name))
    return Capacity(kind="unknown", memory_bytes=getattr(testbed, "memory_bytes", None))


def machine_memory_bytes() -> int:
    """Memory of this machine, or of the container that this process is in."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in map(Path, _CGROUP_LIMITS):
        with suppress(OSError, ValueError):  # there is no such file, or it says `max`
            limits.append(int(file.read_text()))
    return min(limits)
