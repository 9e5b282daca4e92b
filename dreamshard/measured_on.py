"""What costs were measured on: hardware, topology, and the setting of the training step."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dreamshard.costs import CostSample
from dreamshard.names import is_simulated
from dreamshard.tables import Optimizer, Precision
from dreamshard.tasks import PlacementTask

Difference = Literal["hardware", "num_devices", "devices_per_host", "precision", "optimizer", "batch_size"]
"""In what a task can differ from what was measured."""


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """What a training step's cost depends on besides tables, placement and hardware."""

    precision: Precision
    optimizer: Optimizer
    batch_size: Annotated[int, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class MeasuredOn:
    """What the costs behind a prediction were measured on.

    Attributes:
        testbed: name of the testbed, e.g. `cluster`; `preset` for published figures without any measurement.
        hardware: as in `CostSample`; starts with `simulated` if computed.
        num_devices: of the newest measurement.
        devices_per_host: devices that shared a host; None for as many as the hardware has.
        setting: of the steps.
        versions: library name to version; empty where nothing ran.
    """

    testbed: str
    hardware: str
    num_devices: int
    setting: StepSetting
    devices_per_host: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: CostSample) -> "MeasuredOn":
        """What a sample was measured on."""
        task = sample.task
        return cls(
            testbed=sample.testbed,
            hardware=sample.hardware,
            num_devices=task.num_devices,
            devices_per_host=task.devices_per_host,
            setting=StepSetting(precision=task.precision, optimizer=task.optimizer, batch_size=sample.batch_size),
            versions=sample.versions,
        )

    def __str__(self) -> str:
        hosts = f", {self.devices_per_host} per host" if self.devices_per_host else ""
        setting = self.setting
        return (
            f"{self.hardware} ({self.num_devices} devices{hosts}, {setting.precision}, {setting.optimizer}, batch "
            f"{setting.batch_size})"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON holds them, those of the setting beside the others."""
        content = asdict(self) | {"versions": dict(self.versions)}
        return {**{name: value for name, value in content.items() if name != "setting"}, **content["setting"]}

    def shares_hosts_as(self, task: PlacementTask) -> bool:
        """Whether as many devices were measured as the task has, with as many on a host, if the task says how many."""
        count = task.num_devices
        on_a_host = min(count, self.devices_per_host or count)
        return self.num_devices == count and min(count, task.devices_per_host or on_a_host) == on_a_host

    def differences(
        self, task: PlacementTask, hardware: str | None, *, knows_topology: bool = False
    ) -> list[Difference]:
        """In what a task differs from what was measured.

        Args:
            task: to be placed; without a batch size it takes that of the measurements.
            hardware: name of a preset or of one's own hardware that the task is for; None where that is not said.
            knows_topology: whether all-to-alls of as many devices and hosts were measured, if no placements.
        """
        setting = self.setting
        any_count = knows_topology or self.num_devices == 1  # shards of one device, with published links
        same_count = any_count or self.num_devices == task.num_devices
        is_other: dict[Difference, bool] = {
            "hardware": hardware is not None and not is_named(hardware, self.hardware),
            "num_devices": not same_count,
            "devices_per_host": not any_count and same_count and not self.shares_hosts_as(task),
            "precision": setting.precision != task.precision,
            "optimizer": setting.optimizer != task.optimizer,
            "batch_size": setting.batch_size != (task.batch_size or setting.batch_size),
        }
        return [name for name, other in is_other.items() if other]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MeasuredOn":
        """Read the result of `to_json`.

        Raises:
            ValueError: a field is missing or wrong.
        """
        setting = {field.name for field in fields(StepSetting)}
        nested = {name: value for name, value in content.items() if name not in setting}
        nested["setting"] = {name: value for name, value in content.items() if name in setting}
        try:
            return TypeAdapter(cls).validate_json(json.dumps(nested), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{first['loc'][-1]} of what was measured: {first['msg']}") from error


def warning(
    measured: MeasuredOn | None, task: PlacementTask, hardware: str | None, differs: Sequence[Difference]
) -> str:
    """One sentence on the differences between a plan and its costs, and what to do; empty without any.

    Args:
        measured: None if the placer's files do not say.
        task: that was placed.
        hardware: that it is for; None if that is not said.
        differs: from `MeasuredOn.differences`.
    """
    if not differs:
        return ""
    testbed = f"simulated:{hardware}" if hardware else None
    if hardware is None and measured is not None and is_simulated(measured.hardware):
        testbed = measured.hardware.replace(" ", ":", 1)
    options = {"testbed": testbed, "devices": task.num_devices, "devices-per-host": task.devices_per_host}
    options["batch-size"] = task.batch_size
    given = "".join(f" --{name} {value}" for name, value in options.items() if value)
    training = f"train a version: `dreamshard run --source TABLES{given}` (on the machine itself without --testbed)"
    if measured is None:
        return f"it is unknown what this placer's costs were measured on, so they may be no guide to {hardware}; {training}"
    if "hardware" in differs:
        return (
            f"the costs are of {measured}, not of {hardware}, so a rule of thumb may be better there; leave --placer out, "
            f"which picks costs of {hardware}, or {training}"
        )
    names = ", ".join(name.replace("num_", "number of ").replace("_", " ") for name in differs)
    return f"the costs are of {measured}, so they are estimates for another {names}; {training}"


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
