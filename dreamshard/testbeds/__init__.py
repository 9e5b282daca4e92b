"""Testbeds measure placements: on real ranks, on one device that stands for many, or on models of an accelerator.

base        the protocol, the setup, capacity
kinds       simulated: costs from an accelerator's figures; emulated: one device that stands for all, with the links of an
            accelerator; cluster: a rank per device
ranks       which rank is which device; their loop of jobs and their driver, on this host or torchrun's; ray_ranks on Ray
step        a training step, timed: the operators of fbgemm, and its collectives
device      clock, memory, cold caches
"""

import logging
import re
from pathlib import Path

import torch

from dreamshard.costs import SIMULATED
from dreamshard.hardware.accelerator import DEFAULT_PRESET, PRESETS, hardware, is_hardware_file, preset_of
from dreamshard.testbeds.base import Capacity, DeviceType, MeasurementError, Testbed, TestbedSetup
from dreamshard.testbeds.device import device_model
from dreamshard.testbeds.kinds import ClusterTestbed, EmulatedTestbed, SimulatedTestbed
from dreamshard.testbeds.ranks import Ranks
from dreamshard.testbeds.ray_ranks import ray_ranks
from dreamshard.workloads import call

logger = logging.getLogger(__name__)

__all__ = ["Capacity", "MeasurementError", "Testbed", "TestbedSetup", "is_testbed", "open_testbed"]


def open_testbed(name: str, setup: TestbedSetup, launched: Ranks | None = None) -> Testbed:
    """Open the testbed called `name`.

    - `cluster`: real ranks, on CUDA if there are GPUs, else on CPU; `cluster:cpu`, `cluster:cuda`. GPUs for only some of
      the devices are an error, never a reason to measure on CPU.
    - `cluster:ray`: the same ranks as tasks of a Ray cluster; `cluster:ray:cpu`, `cluster:ray:cuda`.
    - `emulated`, `emulated:<accelerator>`: measures the shards of every device on one, a GPU if there is one, with the links
      of the accelerator; by default of the GPU's own preset, or else of the paper's.
    - `auto`: `cluster` on CUDA if there is a GPU for each device, else `emulated` if there is any, else `cluster` on CPU.
    - `simulated`, `simulated:<accelerator>`: a model, by default of the paper's accelerator.
    - Instead of an accelerator's name, the last two take a file of one's own hardware (docs/hardware.md).
    - `package.module:factory` or `testbed.py:factory`: calls the factory with the setup, which returns a subclass of
      `Testbed`.

    `launched` are ranks that torchrun started, for `cluster` and `auto`; without them a cluster starts its own.

    Raises:
        ValueError: the name is unknown, or the testbed cannot run on this machine.

    >>> ds.open_testbed("simulated:a100", setup).hardware
    'simulated a100'
    """
    kind, _, detail = name.partition(":")
    num_gpus = torch.cuda.device_count()
    if kind == "emulated" or (name == "auto" and launched is None and 0 < num_gpus < setup.num_devices):
        on: DeviceType = "cuda" if num_gpus else "cpu"
        if not num_gpus:
            logger.warning(
                "this machine has no GPU, so shards are measured on its CPU; their costs are no guide to GPUs"
            )
        spec = hardware(detail) if detail else preset_of(device_model(on)) or PRESETS[DEFAULT_PRESET]
        return EmulatedTestbed(setup, on, spec)
    if name == "auto" or re.fullmatch(r"cluster(:ray)?(:cpu|:cuda)?", name):
        device_type: DeviceType | None = "cpu" if name.endswith("cpu") else "cuda" if name.endswith("cuda") else None
        ranks = ray_ranks(setup.most_devices, device_type) if detail.startswith("ray") else launched
        return ClusterTestbed(setup, device_type, ranks)
    if kind == SIMULATED:
        return SimulatedTestbed(setup, hardware(detail or DEFAULT_PRESET))
    if not detail or kind in ("auto", "cluster"):
        raise ValueError(
            f"there is no testbed {name!r}; choose auto, cluster, emulated, simulated:a100 or another of docs/gpus.md"
        )
    made = call(name, "there is no testbed", setup)
    if not isinstance(made, Testbed):
        raise ValueError(
            f"testbed {name!r} made a {type(made).__name__}; make a subclass of dreamshard.testbeds.Testbed that has a name "
            "and hardware"
        )
    return made


def is_testbed(name: str, kind: str, measured_on: str) -> bool:
    """Whether a testbed of this kind and hardware may be the one called `name`, as far as another machine can tell.

    `auto` and a custom testbed may be anything; only the worker knows the devices of `cluster` and `emulated`.
    """
    named_kind, _, detail = name.partition(":")
    if named_kind not in ("cluster", "emulated", SIMULATED):
        return True
    if named_kind == SIMULATED:
        detail = detail or DEFAULT_PRESET
    is_known = Path(detail).is_file() if is_hardware_file(detail) else detail in PRESETS
    return kind == named_kind and (not is_known or measured_on.endswith(f" {hardware(detail).name}"))
