"""The cost of a placement, in milliseconds per device and phase.

A training step has four phases on every device: look rows up (forward compute), exchange the pooled vectors (forward
communication), exchange their gradients (backward communication), and update rows (backward compute).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.names import PHASES as PHASES
from dreamshard.placement import Placement
from dreamshard.sharding import ShardedPlacement
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
class MeasuredStep:
    """What the measurement of one placement of any kind says.

    If a shard did not fit, `infeasible` is set, the costs are 0 and `overall_ms` is infinite; training skips such samples.

    Attributes:
        costs: `[D]` per phase, medians over the repeats.
        overall_ms: sum of the slowest device.
        spread_ms: interquartile range of the slowest device's sum over the repeats; 0 if the testbed is deterministic.
        repeats: timed passes behind each median.
        clock: `thread_cpu`, `cuda_event`, `wall` or `model`; communication on the CPU is always `wall`.
        testbed: e.g. `cluster`.
        hardware: e.g. `Intel Xeon x2`; starts with `simulated` if computed.
        batch_size: training samples per pass.
        versions: library name to version.
    """

    task: PlacementTask
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
        phases_ms = self.costs.phases_ms()
        if not phases_ms.isfinite().all() or (phases_ms < 0).any():
            raise ValueError(
                f"testbed {self.testbed!r} measured {phases_ms.tolist()} ms for {self.task.name}, but costs "
                "must be finite and not negative to be learnt from; check the testbed's clock"
            )
        if (self.infeasible is None) != math.isfinite(self.overall_ms):
            raise ValueError(
                f"testbed {self.testbed!r} gave {self.overall_ms} ms for {self.task.name} and infeasible="
                f"{self.infeasible}, but a cost must be infinite exactly if a shard did not fit; correct the testbed"
            )


@dataclass(frozen=True, kw_only=True)
class CostSample(MeasuredStep):
    """The cost of one placement of whole tables or column shards on a testbed."""

    placement: Placement


@dataclass(frozen=True, kw_only=True)
class ShardingSample(MeasuredStep):
    """The cost of one placement of tables that are sharded in any way.

    Its communication includes every collective that waits for pooled vectors or gradients; the exchange of indices is
    hidden behind the batch before, as in TorchRec's pipeline.

    Attributes:
        index_ms: `[D]` of the exchange of indices, which is no part of `costs`.
    """

    placement: ShardedPlacement
    index_ms: Float[Tensor, " D"]


def feasible(samples: Iterable[CostSample]) -> list[CostSample]:
    """The samples whose shards all fitted."""
    return [sample for sample in samples if sample.infeasible is None]
