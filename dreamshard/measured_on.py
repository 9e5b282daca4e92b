"""What costs were measured on: hardware, topology, and the setting of the training step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dreamshard.costs import CostSample
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, Optimizer, Precision


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """What a training step's cost depends on besides tables, placement and hardware."""

    precision: Precision
    optimizer: Optimizer
    batch_size: int

    def __post_init__(self) -> None:
        if self.precision not in BYTES_PER_WEIGHT or self.optimizer not in BYTES_PER_ROW_STATE or self.batch_size < 1:
            raise ValueError(
                f"{self} is not the setting of a training step; precision is one of {list(BYTES_PER_WEIGHT)}, optimizer "
                f"one of {list(BYTES_PER_ROW_STATE)}, and the batch at least 1"
            )


@dataclass(frozen=True, kw_only=True)
class MeasuredOn:
    """What the costs behind a prediction were measured on.

    Attributes:
        testbed: name of the testbed, e.g. `cluster`; `preset` for published figures without any measurement.
        hardware: as in `CostSample`; starts with `simulated` if simulated.
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

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MeasuredOn":
        """Read the result of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or wrong.
        """
        setting = StepSetting(**{name: content[name] for name in ("precision", "optimizer", "batch_size")})
        others = ("testbed", "hardware", "num_devices", "devices_per_host", "versions")
        return cls(setting=setting, **{name: content[name] for name in others})


def is_named(name: str, hardware: str) -> bool:
    """Whether a hardware's description names a preset: `rtx2080ti` is in `NVIDIA GeForce RTX 2080 Ti x2, 2 ranks`."""
    wanted = "".join(_words(name))
    words = _words(hardware)
    spans = ("".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1))
    return wanted in spans


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
