"""What a placement costs, in milliseconds by name.

A training step passes four phases on every device: look the rows up (forward compute), exchange the pooled vectors
(forward communication), exchange their gradients (backward communication), and update the rows (backward compute).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
"""The four phases in the order in which they run; the last axis of a stacked cost tensor."""


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
        """Take the last axis apart, in the order of `PHASES`."""
        return cls(**{f"{phase}_ms": phases_ms[..., i] for i, phase in enumerate(PHASES)})

    def phases_ms(self) -> Float[Tensor, "*B D 4"]:
        """The four phases stacked in the order of `PHASES`."""
        return torch.stack([getattr(self, f"{phase}_ms") for phase in PHASES], dim=-1)

    def device_ms(self) -> Float[Tensor, "*B D"]:
        """Sum of the phases per device."""
        return self.phases_ms().sum(dim=-1)

    def overall_ms(self) -> Float[Tensor, "*B"]:
        """The slowest device's sum, which every other device waits for."""
        return self.device_ms().max(dim=-1).values


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """A shard that did not fit on its device when it was measured.

    Attributes:
        device: of the placement.
        asked_bytes: what the shard needs: weights, optimizer state, lookups, pooled vectors and their gradients.
        free_bytes: what the device had for it.
    """

    device: int
    asked_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class CostSample:
    """What one placement cost on a testbed.

    Where a shard did not fit, `infeasible` says which, the costs are all 0 and `overall_ms` is infinite: nothing is
    learnt from such a sample, and no placement is worse.

    Attributes:
        task: what was placed.
        placement: where.
        costs: `[D]` per phase: the median over the repeats.
        overall_ms: the slowest device's sum.
        spread_ms: interquartile range of that sum over the repeats; 0 where the testbed is deterministic.
        repeats: timed passes behind each median.
        clock: `thread_cpu`, `cuda_event`, `wall` or `model`; communication on the CPU is always `wall`.
        testbed: its name, e.g. `cluster`.
        hardware: its hardware, e.g. `Intel Xeon x2`; simulated hardware says `simulated`.
        batch_size: training samples per pass.
        versions: library name to version.
        infeasible: the shard that did not fit, or None where all were measured.
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

    def __post_init__(self) -> None:
        if not self.costs.phases_ms().isfinite().all() or (self.costs.phases_ms() < 0).any():
            raise ValueError(
                f"testbed {self.testbed!r} measured {self.costs.phases_ms().tolist()} ms for {self.task.name}; costs "
                "must be finite and not negative, or everything learnt from them is wrong; check the testbed's clock"
            )
        if (self.infeasible is None) != math.isfinite(self.overall_ms):
            raise ValueError(
                f"testbed {self.testbed!r} says {self.overall_ms} ms for {self.task.name} and infeasible="
                f"{self.infeasible}; a sample is infinite exactly where a shard did not fit"
            )


def infeasible_costs(num_devices: int) -> DeviceCosts:
    """`[D]` zeros, which stand for the costs of a placement that could not be measured."""
    return DeviceCosts.from_phases(torch.zeros(num_devices, len(PHASES)))


def feasible(samples: Iterable[CostSample]) -> list[CostSample]:
    """The samples from which costs can be learnt."""
    return [sample for sample in samples if sample.infeasible is None]
