"""What loads that are summed over a device's shards cost, by a preset's roofline or by a trained network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.search import DreamShardPlacer, RooflinePlacer
from dreamshard.search.network_costs import NetworkCosts
from dreamshard.search.search_costs import CollectiveLoad
from dreamshard.shards import Collectives, Shards
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.collectives import other_collectives_s
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.loads import COUNT, DIM, placed_loads
from dreamshard.testbeds.accelerators.placed_kernels import placed_backward_s, placed_forward_s


@runtime_checkable
class LoadCosts(Protocol):
    """Costs of loads that were summed per device.

    Attributes:
        every_way: whether they are known of every way to shard.
    """

    every_way: bool

    def loads(self, task: PlacementTask, shards: Shards) -> Float[Tensor, "S L"]:
        """Of each shard."""
        ...

    def compute_ms(self, sums: Float[Tensor, "N L"]) -> Float[Tensor, "N 2"]:
        """Forward and backward compute of devices."""
        ...

    def comm_ms(self, sums: Float[Tensor, "B D L"], others: Sequence[Collectives]) -> Float[Tensor, "B D 2"]:
        """Forward and backward communication; `others` are the collectives of each placement beside the all-to-all."""
        ...


class RooflineLoads:
    """`LoadCosts` of a preset."""

    every_way = True

    def __init__(self, placer: RooflinePlacer, task: PlacementTask) -> None:
        self.spec, self.batch_size = placer.spec, task.batch_size or DEFAULT_BATCH
        self.per_host = min(task.devices_per_host or placer.spec.devices_per_node, task.num_devices)
        self._seconds: dict[tuple[int, ...], Tensor] = {}

    def loads(self, task: PlacementTask, shards: Shards) -> Float[Tensor, "S L"]:
        """See `LoadCosts`."""
        return placed_loads(task, shards, self.batch_size)

    def compute_ms(self, sums: Float[Tensor, "N L"]) -> Float[Tensor, "N 2"]:
        """See `LoadCosts`."""
        sums = sums.clamp(min=0)
        both = [call(sums, self.batch_size, self.spec) for call in (placed_forward_s, placed_backward_s)]
        return torch.where(sums[:, COUNT, None] > 0.5, torch.stack(both, dim=1) * 1e3, 0.0)

    def comm_ms(self, sums: Float[Tensor, "B D L"], others: Sequence[Collectives]) -> Float[Tensor, "B D 2"]:
        """See `LoadCosts`."""
        widths = sums[..., DIM].clamp(min=0)
        seconds = all_to_all_s(vector_bytes(widths, self.batch_size), self.spec, self.per_host)  # [B, D]
        seconds = torch.where((widths > 0).any(dim=-1, keepdim=True), seconds, 0.0)
        return (seconds[..., None] + torch.stack([self._others_s(each) for each in others])) * 1e3

    def _others_s(self, collectives: Collectives) -> Float[Tensor, "D 2"]:
        key = (collectives.row_wise_dims, collectives.all_reduce_bytes, *collectives.host_dims.tolist())
        if key not in self._seconds:
            both = other_collectives_s(collectives, self.batch_size, self.spec, self.per_host)
            self._seconds[key] = torch.stack([both.forward_s, both.backward_s], dim=1)
        return self._seconds[key]


class NetworkLoads:
    """`LoadCosts` of a trained network, of tables in device memory.

    Attributes:
        every_way: whether the network predicts more than whole tables and column shards.
    """

    def __init__(self, placer: DreamShardPlacer, task: PlacementTask) -> None:
        self.placer, self.network = placer, placer.cost_network.for_task(task)
        self.normaliser = placer.normaliser.of_task(task.tables)
        self.every_way = isinstance(self.network, StructuredCostNetwork)
        self._sharding = NetworkCosts.of(task, placer.cost_network, placer.normaliser) if self.every_way else None

    def loads(self, task: PlacementTask, shards: Shards) -> Float[Tensor, "S L"]:
        """See `LoadCosts`."""
        if self._sharding is not None:
            return self._sharding.shard_latents(shards).double()
        ratios = self.network.ratios([replace(task, tables=shards.tables, constraints=UNCONSTRAINED)])
        normalised = self.normaliser(shards.tables)
        return self.network.encode(normalised, None if ratios is None else ratios[0]).double()

    def compute_ms(self, sums: Float[Tensor, "N L"]) -> Float[Tensor, "N 2"]:
        """See `LoadCosts`."""
        phases = self.network.phases_ms(sums.float()[:, None])[:, 0]  # [N, 4]
        return phases[:, [0, 3]].clamp(min=0).double()

    def comm_ms(self, sums: Float[Tensor, "B D L"], others: Sequence[Collectives]) -> Float[Tensor, "B D 2"]:
        """See `LoadCosts`."""
        comm_ms = self.network.phases_ms(sums.float())[..., 1:3].clamp(min=0).double()
        if self._sharding is None:
            return comm_ms
        load = CollectiveLoad(
            np.array([float(each.row_wise_dims) for each in others]),
            np.array([float(each.all_reduce_bytes) for each in others]),
            np.stack([each.host_dims.double().numpy() for each in others]),
        )
        return comm_ms + torch.from_numpy(self._sharding.collectives_ms(load))[:, None].double()
