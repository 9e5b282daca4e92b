"""The roofline of a preset for tables that are sharded in any way."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.placed_shards import PlacedShards, placed_shards
from dreamshard.search.roofline_costs import LOADS, RooflineCosts, RooflineEvaluator
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.collectives import host_exchange_s, ring_s
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.loads import ABOVE_32, ABOVE_64, COUNT, DIM, NUM_PLACED_LOADS, placed_loads
from dreamshard.testbeds.accelerators.public_measurements import Operation
from dreamshard.testbeds.accelerators.roofline import sharding_costs

_ROWS_OPERATIONS: tuple[Operation, ...] = ("reduce_scatter", "all_gather")  # there and back
_FLAGS = [COUNT, ABOVE_32, ABOVE_64]  # loads of which a device that has any has at least one


@dataclass(frozen=True)
class RooflineSharding:
    """`ShardingCosts` by the roofline.

    Attributes:
        task: whose shards it costs.
        costs: of its whole tables.
        devices_per_host: devices that share a host.
    """

    task: PlacementTask
    costs: RooflineCosts
    devices_per_host: int

    @classmethod
    def of(cls, task: PlacementTask, costs: RooflineCosts) -> "RooflineSharding":
        """Costs of the task's shards, the whole tables' costs being known."""
        share = torch.nn.functional.pad(costs.share, (0, NUM_PLACED_LOADS - len(costs.share)))
        per_host = min(task.devices_per_host or costs.spec.devices_per_node, task.num_devices)
        return cls(task, replace(costs, share=share, devices_per_host=per_host), per_host)

    def shard_latents(self, shards: PlacedShards) -> Float[Tensor, "S L"]:
        """See `ShardingCosts`."""
        return self.costs.with_work(placed_loads(self.task, shards, self.costs.batch_size))

    def evaluator(self) -> RooflineEvaluator:
        """See `ShardingCosts`."""
        return self._evaluator

    @cached_property
    def _evaluator(self) -> RooflineEvaluator:
        return self.costs.evaluator()

    def even_ms(self, sums: Figures) -> Figures:
        """See `ShardingCosts`."""
        loads = torch.from_numpy(np.asarray(sums)[:, LOADS]).double()
        loads[:, _FLAGS] = torch.where(loads[:, _FLAGS] > 0, loads[:, _FLAGS].clamp(min=1), 0.0)
        costs, num_devices = self.costs, self.task.num_devices
        sent_bytes = vector_bytes(loads[:, DIM, None].expand(-1, num_devices), costs.batch_size)
        comm_s = all_to_all_s(sent_bytes, costs.spec, costs.devices_per_host)[:, 0] * (loads[:, DIM] > 0)
        total: Figures = (costs.compute_ms(loads).sum(dim=1) + 2e3 * comm_s).numpy()
        return total

    def other_ms(self, load: CollectiveLoad) -> Figures:
        """See `ShardingCosts`."""
        spec, batch_size, num_devices = self.costs.spec, self.costs.batch_size, self.task.num_devices
        row_dims, gradients, host_dims = (
            torch.from_numpy(np.asarray(values, np.float64))
            for values in (load.row_dims, load.all_reduce_bytes, load.host_dims)
        )
        per_host, zero = self.devices_per_host, torch.zeros(1, dtype=torch.float64)

        def ring(num_bytes: Tensor, operation: Operation) -> Tensor:
            if not bool(num_bytes.any()):
                return torch.zeros_like(num_bytes)
            return torch.where(num_bytes > 0, ring_s(num_bytes, num_devices, spec, per_host, operation), zero)

        rows_bytes = vector_bytes(row_dims, batch_size)
        rings_s = ring(rows_bytes, "reduce_scatter") + ring(rows_bytes, "all_gather") + ring(gradients, "all_reduce")
        total_s = rings_s[:, None].expand(-1, num_devices)
        busy = (host_dims > 0).any(dim=1, keepdim=True)
        if bool(busy.any()):
            there, back = (
                host_exchange_s(host_dims, batch_size, per_host, spec, per_host, operation)
                for operation in _ROWS_OPERATIONS
            )
            hosts_s = torch.where(busy, there + back, zero)
            total_s = total_s + hosts_s.repeat_interleave(per_host, dim=1)[:, :num_devices]
        result: Figures = (1e3 * total_s).float().numpy()
        return result

    def predict_sharded(self, task: PlacementTask, placement: ShardedPlacement) -> DeviceCosts:
        """See `ShardingCosts`."""
        return sharding_costs(task, placed_shards(task, placement), self.costs.batch_size, self.costs.spec)
