"""The topology of a version: the hardware, the number of devices and the devices per host that its costs are of.

Costs are comparable only within one topology, so each algorithm has a registered model per topology.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dreamshard.costs import SIMULATED, is_simulated
from dreamshard.training.config import Algorithm

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

    def registered_model(self, algorithm: Algorithm) -> str:
        """The name of the algorithm's registered model: `dreamshard-simulated-a100-8`, `dreamshard-simulated-a100-8x8`."""
        hardware = re.sub(r"[^a-z0-9]+", "-", self.hardware.lower()).strip("-")
        per_host = self.devices_per_host
        devices = f"{-(-self.num_devices // per_host)}x{per_host}" if per_host else str(self.num_devices)
        return f"{algorithm}-{hardware}-{devices}"

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

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Topology":
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))
