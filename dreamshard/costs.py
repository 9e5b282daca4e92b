"""Costs of placements and of single all-to-alls, in milliseconds per device and phase, and the origin of measurements.

A training step has four phases on every device: look rows up (forward compute), exchange the pooled vectors (forward
communication), exchange their gradients (backward communication), and update rows (backward compute).
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dreamshard.files import counted
from dreamshard.tables import Optimizer, Placement, Precision
from dreamshard.tasks import PlacementTask, Shards

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
"""Of a training step on every device, in the order in which they run; the last axis of a stacked cost tensor."""

_REACH, _POINTS = 5.0, 101  # of the grid of the slowest device's time: standard errors, values

SIMULATED = "simulated"
"""The testbed that computes costs without any device; the hardware that it states starts with this name."""

MEASURING = "1"
"""Version of `testbeds`; raise it with a change after which the same placement measures differently."""

TRACED = "traced"
"""In place of a testbed, of samples from profiler traces of a running job, which may lack devices."""

Difference = Literal["hardware", "num_devices", "devices_per_host", "precision", "optimizer", "batch_size"]
"""Respects in which a task can differ from the measurements."""


def is_simulated(hardware: str) -> bool:
    """Whether costs of this hardware were computed without any device."""
    return hardware.startswith(f"{SIMULATED} ")


def is_named(name: str, hardware: str) -> bool:
    """Whether a hardware's description names a preset: `rtx2080ti` is in `NVIDIA GeForce RTX 2080 Ti x2, 2 ranks`.

    The name's words are in the description, maybe as several words; links of an emulated testbed do not count.
    """
    if is_simulated(hardware):
        return hardware.partition(" ")[2] == name
    described, words = hardware.partition(" for each device")[0], re.findall(r"[a-z0-9]+", name.lower())
    return all(re.search(rf"\b{word}\b", described, re.IGNORECASE) for word in map(r"\W*".join, words))


@cache
def library_versions(driver: Path = Path("/sys/module/nvidia/version")) -> Mapping[str, str]:
    """Versions that a measurement depends on: torch, CUDA, NCCL, fbgemm, NVIDIA's driver, and this project's measuring."""
    versions = {"torch": str(torch.__version__), "measuring": MEASURING}
    if cuda := torch.version.cuda:
        versions |= {"cuda": cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    with suppress(OSError):  # there is no such driver
        versions["driver"] = driver.read_text().strip()
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


@dataclass(frozen=True)
class DeviceCosts:
    """Milliseconds `[*B, D, 4]` of each device by phase, in the order of `PHASES`, for any batch of placements.

    Attributes:
        relative_error: standard error of a device's sum, by which the devices differ from a prediction; 0 if measured.

    >>> ds.DeviceCosts(torch.tensor([[1.0, 0.5, 0.5, 2.0], [1.0, 0.5, 0.5, 1.0]])).overall_ms()
    tensor(4.)
    """

    phases_ms: Float[Tensor, "*B D 4"]
    relative_error: float = 0.0

    @property
    def seen(self) -> Bool[Tensor, "*B D"]:
        """Devices that were measured; the phases of others are NaN."""
        return ~self.phases_ms.isnan().any(-1)

    def device_ms(self) -> Float[Tensor, "*B D"]:
        """Sum of the phases per device."""
        return self.phases_ms.sum(dim=-1)

    def overall_ms(self) -> Float[Tensor, "*B"]:
        """Sum of the slowest device that was seen, for which all wait; with errors, its mean over them.

        The mean is above each prediction if several devices are about as slow: one will be slower than predicted. Searches
        minimise it, plan files state it, and reports compare it.
        """
        device_ms = self.device_ms().where(self.seen, 0.0)[..., None]  # [*B, D, 1]
        slowest = device_ms.max(dim=-2).values  # [*B, 1]
        if not self.relative_error:
            return slowest[..., 0]
        at_ms = slowest * (1 + self.relative_error * torch.linspace(-_REACH, _REACH, _POINTS))  # [*B, P]
        errors = (at_ms[..., None, :] - device_ms) / (self.relative_error * device_ms).clamp(min=1e-9)
        return at_ms[..., 0] + torch.trapezoid(1 - torch.special.ndtr(errors).prod(dim=-2), at_ms)


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """A shard that did not fit on its device.

    Attributes:
        asked_bytes: of weights, state, pooled vectors and their gradients.
        foreign_bytes: held by other processes at the time.
    """

    device: int
    asked_bytes: int
    free_bytes: int
    foreign_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How something was measured.

    Attributes:
        repeats: timed passes behind each median; testbeds time one a round, and none of shards that did not fit.
        clock: `thread_cpu`, `cuda_event`, `wall` or `model`; communication on the CPU is always `wall`.
        hardware: e.g. `Intel Xeon x2`; starts with `simulated` if computed.
        versions: `library_versions` of then.
        round: number of this round among those of the same placement or all-to-all, from 0 (`testbeds.rounds`).
    """

    clock: str
    testbed: str
    hardware: str
    repeats: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class CostSample(Measurement):
    """The cost of one placement on a testbed, measured in one round.

    If a shard did not fit, `infeasible` is set and the costs are 0; training skips such samples.

    Attributes:
        task: as it was measured: with the devices per host of the testbed.
        costs: `[D]` per phase, medians over the repeats; NaN for devices without a trace. Communication includes every
            collective of pooled vectors and gradients, but no exchange of indices, which TorchRec's pipeline hides.
        batch_size: training samples per pass.
        repeat: number of the independent measurement of the placement that the round belongs to, from 0.
        is_reference: whether it shows how steady the machine is; nothing learns from it.

    >>> sample = testbed.measure(task, ds.Placement.whole([0, 1], 2))
    >>> sample.overall_ms == float(sample.costs.device_ms().max())
    True
    """

    task: PlacementTask
    placement: Placement
    costs: DeviceCosts
    batch_size: int
    infeasible: Infeasible | None = None
    repeat: int = 0
    is_reference: bool = False

    def __post_init__(self) -> None:
        phases_ms = self.costs.phases_ms
        if self.testbed == TRACED:
            phases_ms = phases_ms[~phases_ms.isnan().all(-1)]
        if not len(phases_ms) or not phases_ms.isfinite().all() or (phases_ms < 0).any():
            raise ValueError(
                f"testbed {self.testbed!r} measured {phases_ms.tolist()} ms for {self.task.name}; costs are finite and not "
                "negative: check the clock"
            )

    @property
    def overall_ms(self) -> float:
        """Sum of the slowest device that was seen; infinite if a shard did not fit."""
        return math.inf if self.infeasible is not None else float(self.costs.overall_ms())

    def of_whole_tables(self) -> "CostSample":
        """The same with shards as tables of their own, each whole on its device."""
        if self.placement.is_whole:
            return self
        shards = Shards.of(self.task, self.placement)
        placement = Placement.whole(shards.device, shards.num_devices)
        return replace(self, task=shards.as_task(), placement=placement)


def feasible(samples: Iterable[CostSample]) -> list[CostSample]:
    """The samples whose shards all fitted."""
    return [sample for sample in samples if sample.infeasible is None]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An all-to-all to be measured without any table.

    Attributes:
        sent_bytes: `[D]` that each device sends; each device, itself too, gets a `D`-th of it.
        devices_per_host: None for as many as the hardware has.
    """

    sent_bytes: Int[Tensor, " D"]
    devices_per_host: int | None = None

    @property
    def num_devices(self) -> int:
        """`D`."""
        return len(self.sent_bytes)


@dataclass(frozen=True, kw_only=True)
class ExchangeSample(Measurement):
    """The cost of one all-to-all on a testbed.

    Attributes:
        forward_ms: `[D]` until each device had sent and received all bytes.
        backward_ms: `[D]` of the way back, in which each device returns the bytes that it received.
        host_devices: devices on a host of the hardware, for `devices_per_host=None`; None if all share a host.
    """

    exchange: Exchange
    forward_ms: Float[Tensor, " D"]
    backward_ms: Float[Tensor, " D"]
    host_devices: int | None = None

    @property
    def overall_ms(self) -> float:
        """Both ways, each until the slowest device has finished."""
        return float(self.forward_ms.max() + self.backward_ms.max())


class MeasuredOn(BaseModel):
    """The origin of the costs behind a prediction.

    Attributes:
        testbed: its name, e.g. `cluster`; `preset` for published figures without any measurement.
        num_devices: of the newest measurement.
        devices_per_host: devices that shared a host; None for as many as the hardware has.
    """

    model_config = ConfigDict(frozen=True)

    precision: Precision
    optimizer: Optimizer
    batch_size: Annotated[int, Field(gt=0)]
    testbed: str
    hardware: str
    num_devices: int
    devices_per_host: int | None = None
    versions: Mapping[str, str] = {}

    @classmethod
    def of(cls, sample: CostSample) -> "MeasuredOn":
        """The origin of a sample."""
        return cls.model_validate(vars(sample.task) | vars(sample))

    def __str__(self) -> str:
        hosts = f", {self.devices_per_host} per host" if self.devices_per_host else ""
        step = f"{self.precision}, {self.optimizer}, batch {self.batch_size}"
        return f"{self.hardware} ({counted(self.num_devices, 'device')}{hosts}, {step})"

    def shares_hosts_as(self, task: PlacementTask) -> bool:
        """Whether as many devices were measured as the task has, with as many on a host, if the task says how many."""
        count = task.num_devices
        on_a_host = min(count, self.devices_per_host or count)
        return self.num_devices == count and min(count, task.devices_per_host or on_a_host) == on_a_host

    def differences(self, task: PlacementTask, hardware: str | None, *, knows_topology: bool) -> list[Difference]:
        """Respects in which a task differs from the measurements.

        Args:
            task: to be placed; without a batch size it takes the measurements'.
            hardware: name of a preset or of one's own hardware that the task is for; None if unknown.
            knows_topology: whether all-to-alls of as many devices and hosts were measured, if no placements.
        """
        any_count = knows_topology or self.num_devices == 1  # shards of one device, with published links
        same_count = any_count or self.num_devices == task.num_devices
        is_other: dict[Difference, bool] = {
            "hardware": hardware is not None and not is_named(hardware, self.hardware),
            "num_devices": not same_count,
            "devices_per_host": not any_count and same_count and not self.shares_hosts_as(task),
            "precision": set(task.precisions) != {self.precision},
            "optimizer": self.optimizer != task.optimizer,
            "batch_size": self.batch_size != (task.batch_size or self.batch_size),
        }
        return [name for name, other in is_other.items() if other]
