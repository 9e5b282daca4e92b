"""Costs of placements, in milliseconds per device and phase, and of single all-to-alls.

A training step has four phases on every device: look rows up (forward compute), exchange the pooled vectors (forward
communication), exchange their gradients (backward communication), and update rows (backward compute).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.names import PHASES as PHASES
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """Milliseconds per phase and device; `...` is any batch of placements.

    Attributes:
        forward_compute_ms: `[..., D]` fused lookup and pooling.
        forward_comm_ms: `[..., D]` all-to-all of the pooled vectors.
        backward_comm_ms: `[..., D]` all-to-all of their gradients.
        backward_compute_ms: `[..., D]` fused gradient and optimizer.
    """

    forward_compute_ms: Float[Tensor, "*B D"]
    forward_comm_ms: Float[Tensor, "*B D"]
    backward_comm_ms: Float[Tensor, "*B D"]
    backward_compute_ms: Float[Tensor, "*B D"]

    @classmethod
    def from_phases(cls, phases_ms: Float[Tensor, "*B D 4"]) -> "DeviceCosts":
        """Unstack `PHASES` from the last axis."""
        return cls(**{f"{phase}_ms": phases_ms[..., i] for i, phase in enumerate(PHASES)})

    def phases_ms(self) -> Float[Tensor, "*B D 4"]:
        """The four phases stacked in the order of `PHASES`."""
        return torch.stack([getattr(self, f"{phase}_ms") for phase in PHASES], dim=-1)

    def device_ms(self) -> Float[Tensor, "*B D"]:
        """Sum of the phases per device."""
        return self.phases_ms().sum(dim=-1)

    def overall_ms(self) -> Float[Tensor, "*B"]:
        """Sum of the slowest device, which all others wait for."""
        return self.device_ms().max(dim=-1).values


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """A shard that did not fit on its device when it was measured.

    Attributes:
        asked_bytes: of weights, optimizer state, lookups, pooled vectors and their gradients.
    """

    device: int
    asked_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class CostSample:
    """The cost of one placement on a testbed.

    If a shard did not fit, `infeasible` is set, the costs are 0 and `overall_ms` is infinite; training skips such samples.

    Attributes:
        task: as it was measured: with the devices per host of the testbed.
        costs: `[D]` per phase, medians over the repeats. Communication includes every collective that waits for pooled
            vectors or gradients; the exchange of indices is hidden behind the batch before, as in TorchRec's pipeline.
        overall_ms: sum of the slowest device.
        spread_ms: interquartile range of the slowest device's sum over the repeats; 0 if the testbed is deterministic.
        repeats: timed passes behind each median.
        clock: `thread_cpu`, `cuda_event`, `wall` or `model`; communication on the CPU is always `wall`.
        testbed: e.g. `cluster`.
        hardware: e.g. `Intel Xeon x2`; starts with `simulated` if computed.
        batch_size: training samples per pass.
        versions: library name to version.
        index_ms: `[D]` of the exchange of indices, which is no part of `costs`; None if it was not measured.
    """

    task: PlacementTask
    placement: Placement
    costs: DeviceCosts
    overall_ms: float
    spread_ms: float
    repeats: int
    clock: str
    testbed: str
    hardware: str
    batch_size: int
    versions: Mapping[str, str] = field(default_factory=dict)
    infeasible: Infeasible | None = None
    index_ms: Float[Tensor, " D"] | None = None

    def __post_init__(self) -> None:
        phases_ms = self.costs.phases_ms()
        if not phases_ms.isfinite().all() or (phases_ms < 0).any():
            raise ValueError(
                f"testbed {self.testbed!r} measured {phases_ms.tolist()} ms for {self.task.name}; costs must be finite and "
                "not negative, so check the testbed's clock"
            )
        if (self.infeasible is None) != math.isfinite(self.overall_ms):
            raise ValueError(
                f"testbed {self.testbed!r} gave {self.overall_ms} ms for {self.task.name} and infeasible={self.infeasible}; "
                "a cost is infinite exactly if a shard did not fit"
            )

    def of_whole_tables(self) -> "CostSample":
        """The same with shards as tables of their own, each whole on its device."""
        if self.placement.is_whole:
            return self
        shards = Shards.of(self.task, self.placement)
        placement = Placement.whole(shards.device, shards.num_devices)
        return replace(self, task=shards.as_task(self.task), placement=placement)


def feasible(samples: Iterable[CostSample]) -> list[CostSample]:
    """The samples whose shards all fitted."""
    return [sample for sample in samples if sample.infeasible is None]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An all-to-all to be measured without any table.

    Communication depends on bytes and on how devices are connected, so a few dozen exchanges over sizes and numbers of
    devices describe the links of some hardware once for all trainings on it.

    Attributes:
        sent_bytes: `[D]` what each device sends in all; each device, itself too, gets a `D`-th of it.
        devices_per_host: devices that share a host; None for as many as the hardware has.
    """

    sent_bytes: Int[Tensor, " D"]
    devices_per_host: int | None = None

    def __post_init__(self) -> None:
        if len(self.sent_bytes) < 2 or (self.sent_bytes < 0).any() or not (self.sent_bytes > 0).any():
            raise ValueError(
                f"an all-to-all of {self.sent_bytes.tolist()} bytes moves nothing; give at least two devices, one of which "
                "sends something"
            )
        if self.devices_per_host is not None and self.devices_per_host < 1:
            raise ValueError(f"an all-to-all has {self.devices_per_host} devices per host; a host has at least 1")

    @property
    def num_devices(self) -> int:
        """`D`."""
        return len(self.sent_bytes)


@dataclass(frozen=True, kw_only=True)
class ExchangeSample:
    """The cost of one all-to-all on a testbed.

    Attributes:
        forward_ms: `[D]` until each device had sent its own and received all others' bytes; median over the repeats.
        backward_ms: `[D]` of the way back, in which each device sends what it received.
        spread_ms: as in `CostSample`, like `repeats`, `clock`, `testbed`, `hardware` and `versions`.
        host_devices: devices on a host of the hardware, which `devices_per_host=None` stands for; None if all devices of any
            exchange share a host.
    """

    exchange: Exchange
    forward_ms: Float[Tensor, " D"]
    backward_ms: Float[Tensor, " D"]
    spread_ms: float
    repeats: int
    clock: str
    testbed: str
    hardware: str
    host_devices: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
