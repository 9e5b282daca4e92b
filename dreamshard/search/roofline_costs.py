"""The roofline of a preset as costs that a search can add up."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    COPIES,
    HOSTS,
    ROWS,
    DeviceLaw,
    Floats,
    curve_points,
    roofline_law,
)
from dreamshard.costs import DeviceCosts
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import Operation, all_to_all_s, host_exchange_s, ring_s, vector_bytes
from dreamshard.hardware.loads import placed_loads
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask

_ROWS_OPERATIONS: tuple[Operation, ...] = ("reduce_scatter", "all_gather")  # there and back


@dataclass(frozen=True)
class RooflineCosts:
    """`SearchCosts` by the roofline, which is never wrong about itself, so that any gain by columns counts.

    Attributes:
        task: whose shards it costs.
        spec: figures of the accelerator.
        batch_size: training samples per step.
        devices_per_host: devices that share a host.
    """

    task: PlacementTask
    spec: AcceleratorSpec
    batch_size: int
    devices_per_host: int
    column_gain: ClassVar[float] = 0.0
    spread_gain: ClassVar[float] = 0.005

    @classmethod
    def of(cls, task: PlacementTask, spec: AcceleratorSpec) -> "RooflineCosts":
        """Costs of a task's shards on this hardware."""
        per_host = min(task.devices_per_host or spec.devices_per_node, task.num_devices)
        return cls(task, spec, task.batch_size or DEFAULT_BATCH, per_host)

    def loads(self, shards: Shards) -> Floats:
        """See `SearchCosts`."""
        loads: Floats = placed_loads(self.task, shards, self.batch_size).numpy()
        return loads

    def law(self) -> DeviceLaw:
        """See `SearchCosts`."""
        points, num_devices = torch.from_numpy(curve_points()), self.task.num_devices
        curves = np.zeros((4, len(points)))
        sent_bytes = vector_bytes(points[:, None].expand(-1, num_devices), self.batch_size)
        curves[ALL_TO_ALL] = 2e3 * all_to_all_s(sent_bytes, self.spec, self.devices_per_host)[:, 0].numpy()
        rows_bytes = vector_bytes(points, self.batch_size)
        rings = [self._ring_s(rows_bytes, operation) for operation in _ROWS_OPERATIONS]
        curves[ROWS] = 1e3 * torch.stack(rings).sum(dim=0).numpy()
        curves[COPIES] = 1e3 * self._ring_s(points, "all_reduce").numpy()
        hosts = -(-num_devices // self.devices_per_host)
        busiest = torch.nn.functional.pad(points[:, None], (0, hosts - 1))  # [G, H]
        exchanges = [
            host_exchange_s(
                busiest, self.batch_size, self.devices_per_host, self.spec, self.devices_per_host, operation
            )
            for operation in _ROWS_OPERATIONS
        ]
        curves[HOSTS] = 1e3 * torch.stack(exchanges).sum(dim=0)[:, 0].numpy()
        return roofline_law(self.spec, self.batch_size, curves)

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """See `SearchCosts`."""
        return sharding_costs(task, Shards.of(task, placement), self.batch_size, self.spec)

    def _ring_s(self, num_bytes: Tensor, operation: Operation) -> Tensor:
        return ring_s(num_bytes, self.task.num_devices, self.spec, self.devices_per_host, operation)
