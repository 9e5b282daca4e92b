"""The topology of a version: the hardware, the number of devices and the devices per host that its costs are of.

Costs are comparable only within one topology, so each has a champion of its own (`champions`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dreamshard.names import SIMULATED, is_simulated

MODELLED = (SIMULATED, "emulated")
"""Kinds of testbeds that do not measure on as many devices as they stand for."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hardware, devices and devices per host.

    Attributes:
        testbed: kind of testbed, e.g. `cluster`.
        hardware: as the testbed states it; starts with `simulated` if computed.
        num_devices: devices of the tasks.
        devices_per_host: devices that share a host; None for as many as the hardware has.
    """

    testbed: str
    hardware: str
    num_devices: int
    devices_per_host: int | None = None

    @property
    def is_measured(self) -> bool:
        """Whether costs are measured on real devices, rather than computed or emulated."""
        return self.testbed not in MODELLED and not is_simulated(self.hardware)

    def __str__(self) -> str:
        hosts = f", {self.devices_per_host} per host" if self.devices_per_host else ""
        return f"{self.hardware} · {self.num_devices} device{'s' if self.num_devices > 1 else ''}{hosts}"

    @classmethod
    def of_setting(cls, setting: Mapping[str, Any]) -> "Topology":
        """From the setting of a training (`run_records.lineage.Setting`).

        Raises:
            KeyError: the setting does not say.
        """
        per_host = setting.get("devices per host")
        return cls(
            testbed=str(setting["testbed"]),
            hardware=str(setting["hardware"]),
            num_devices=int(setting["devices"]),
            devices_per_host=int(per_host) if per_host else None,
        )

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> "Topology | None":
        """From the tags of a version, whichever of them it has; None where they do not say."""
        setting = json.loads(tags["origin"]).get("setting", {}) if "origin" in tags else {}
        if {"testbed", "hardware", "devices"} <= setting.keys():
            return cls.of_setting(setting)
        if "measured_on" not in tags:
            return None
        measured = json.loads(tags["measured_on"])
        return cls(
            testbed=tags.get("testbed", measured["testbed"]),
            hardware=tags.get("hardware", measured["hardware"]),  # with the digest of a custom testbed's source
            num_devices=int(measured["num_devices"]),
            devices_per_host=measured["devices_per_host"],
        )
