"""What costs were measured on: hardware, topology, and the setting of the training step."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dreamshard.costs import CostSample
from dreamshard.files.foreign import InputError, brief
from dreamshard.names import is_simulated
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, Optimizer, Precision
from dreamshard.tasks import PlacementTask

Difference = Literal["hardware", "num_devices", "devices_per_host", "precision", "optimizer", "batch_size"]
"""In what a task can differ from what was measured."""


_KINDS = {
    **dict.fromkeys(("testbed", "hardware", "precision", "optimizer"), str),
    **dict.fromkeys(("num_devices", "batch_size"), int),
    "devices_per_host": int | None,
    "versions": dict,
}
"""Types of the fields in JSON."""


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """What a training step's cost depends on besides tables, placement and hardware."""

    precision: Precision
    optimizer: Optimizer
    batch_size: int

    def __post_init__(self) -> None:
        if self.precision not in BYTES_PER_WEIGHT or self.optimizer not in BYTES_PER_ROW_STATE or self.batch_size < 1:
            raise InputError(
                f"{brief(self)} is no setting of a training step; precision is one of {list(BYTES_PER_WEIGHT)}, optimizer "
                f"one of {list(BYTES_PER_ROW_STATE)}, and the batch at least 1"
            )


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
        asked: dict[Difference, tuple[object, object]] = {
            "num_devices": (self.num_devices, self.num_devices if any_count else task.num_devices),
            "devices_per_host": (True, any_count or self.num_devices != task.num_devices or self.shares_hosts_as(task)),
            "precision": (setting.precision, task.precision),
            "optimizer": (setting.optimizer, task.optimizer),
            "batch_size": (setting.batch_size, task.batch_size or setting.batch_size),
        }
        others = [name for name, (measured, wanted) in asked.items() if measured != wanted]
        other_hardware = hardware is not None and not is_named(hardware, self.hardware)
        return ["hardware", *others] if other_hardware else others

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MeasuredOn":
        """Read the result of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or wrong.
        """
        for name, kind in _KINDS.items():
            if isinstance(content[name], bool) or not isinstance(content[name], kind):
                raise TypeError(f"{name} is of type {type(content[name]).__name__}, which says nothing about it")
        setting = StepSetting(**{name: content[name] for name in ("precision", "optimizer", "batch_size")})
        others = ("testbed", "hardware", "num_devices", "devices_per_host", "versions")
        return cls(setting=setting, **{name: content[name] for name in others})


def warning(
    measured: MeasuredOn | None, task: PlacementTask, hardware: str | None, differs: Sequence[Difference]
) -> str:
    """One sentence on what the differences mean for a plan, and what to do; empty without any.

    Args:
        measured: None where the placer's files do not say.
        task: that was placed.
        hardware: that it is for; None where that is not said.
        differs: from `MeasuredOn.differences`.
    """
    if not differs:
        return ""
    if measured is None:
        return (
            f"it is unknown what this placer's costs were measured on, so they may be no guide to {hardware}; train a new "
            f"version with {_training(task, hardware, measured)}"
        )
    if "hardware" in differs:
        return (
            f"the costs are of {measured}, not of {hardware}, so this placement may be worse than a rule of thumb there; "
            f"leave --placer out, which picks costs of {hardware}, or train with {_training(task, hardware, measured)}"
        )
    setting = StepSetting(
        precision=task.precision,
        optimizer=task.optimizer,
        batch_size=task.batch_size or measured.setting.batch_size,
    )
    wanted = replace(measured, num_devices=task.num_devices, devices_per_host=task.devices_per_host, setting=setting)
    scaled = [name.replace("_", " ") for name in differs if name not in ("num_devices", "devices_per_host")]
    effects = [f"{' and '.join(scaled)} scaled by the bytes moved"] if scaled else []
    if "num_devices" in differs:
        effects.append(f"all-to-alls of {task.num_devices} devices extrapolated")
    if "devices_per_host" in differs:
        effects.append(f"all-to-alls at {task.devices_per_host} per host extrapolated")
    return (
        f"the costs are of {measured}, but the plan is for {wanted}, so they are estimates ({'; '.join(effects)}): train in "
        f"that setting with {_training(task, hardware, measured)}"
    )


def _training(task: PlacementTask, hardware: str | None, measured: MeasuredOn | None) -> str:
    """The command that trains for a task, and how long it takes.

    Args:
        task: that was placed.
        hardware: that it is for; None where that is not said: then as for what was measured.
        measured: None where that is unknown.
    """
    testbed = f"simulated:{hardware}" if hardware else None
    if hardware is None and measured is not None and is_simulated(measured.hardware):
        testbed = measured.hardware.replace(" ", ":", 1)
    where = "a few minutes without a GPU; on the machine itself leave out --testbed" if testbed else "minutes"
    batch = f" --batch-size {task.batch_size}" if task.batch_size else ""
    hosts = f" --devices-per-host {task.devices_per_host}" if task.devices_per_host else ""
    on = f" --testbed {testbed}" if testbed else ""
    command = f"dreamshard run --source TABLES{on} --devices {task.num_devices}{hosts}{batch}"
    return f"`{command}` (TABLES: the list or model; {where}; precision and optimizer are the recipe's)"


def is_named(name: str, hardware: str) -> bool:
    """Whether a hardware's description names a preset: `rtx2080ti` is in `NVIDIA GeForce RTX 2080 Ti x2, 2 ranks`.

    The links of an emulated testbed do not count, only the device that it measured.
    """
    if is_simulated(hardware):
        return hardware.partition(" ")[2] == name
    wanted, words = "".join(_words(name)), _words(hardware.partition(" for each device")[0])
    spans = ("".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1))
    return wanted in spans


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
