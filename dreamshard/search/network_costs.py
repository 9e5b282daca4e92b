"""A trained cost network for tables that are sharded in any way.

The network has seen whole tables and column shards, and all-to-alls. What it says of other shards follows from these:

- A block of rows, or a data-parallel copy, computes as a table with its rows and its share of the lookups. The partial sums
  that a block writes for samples without lookups in it, and the dense update of a copy, are not known to the network.
- A reduce-scatter or an all-gather of row-wise tables takes as long as an all-to-all in which every device sends as much.
- An all-reduce takes twice as long as that.
- Tables on one host take a reduce-scatter among its devices, and an all-to-all among as many devices as there are hosts, each
  on a host of its own.

Tables in host memory are not predicted: nothing measured tells what a cache costs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.cost_model import CostNetwork, Normaliser, shard_sums
from dreamshard.cost_model.compiled import COPIES, HOSTS, ROWS, DeviceLaw, Floats, curve_points, network_law
from dreamshard.cost_model.exchange_law import Topology
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.costs import DeviceCosts
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.placement import ON_ONE_DEVICE, Placement
from dreamshard.search.search_costs import CollectiveLoad, Figures
from dreamshard.shards import Shards
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask

_FORWARD, _BACKWARD = 0, 1
_POINTS = 24  # of a curve of all-to-alls
_LEAST_DIMS, _MOST_DIMS = 1.0, 1e6  # of a curve
_HUNDRED = 100  # dims in a unit of the network's widths


@dataclass(frozen=True)
class NetworkCosts:
    """`SearchCosts` by a trained network.

    Attributes:
        task: whose shards it costs.
        network: for the task's devices and hosts (`CostNetwork.for_task`).
        normaliser: of its features.
        devices_per_host: devices that share a host.
    """

    task: PlacementTask
    network: StructuredCostNetwork
    normaliser: Normaliser
    devices_per_host: int
    column_gain: ClassVar[float] = 0.03
    spread_gain: ClassVar[float] = 0.03

    @classmethod
    def of(cls, task: PlacementTask, network: CostNetwork, normaliser: Normaliser) -> "NetworkCosts":
        """Costs of the task's shards.

        Raises:
            ValueError: the network is of an architecture that does not tell communication from compute.
        """
        if not isinstance(network, StructuredCostNetwork):
            raise ValueError(
                "the paper's cost network predicts whole tables and columns only, since it does not tell an all-to-all from "
                "compute; train the algorithm dreamshard, or use a preset"
            )
        network = network.for_task(task)
        shape = network.exchanges.topology(task.num_devices, task.devices_per_host)
        return cls(task, network, normaliser, min(shape.devices_per_host, task.num_devices))

    def shard_latents(self, shards: Shards) -> Float[Tensor, "S L"]:
        """See `SearchCosts`.

        Raises:
            ValueError: a table is in host memory.
        """
        if bool((shards.host_bytes > 0).any()):
            name = shards.tables.names[int((shards.host_bytes > 0).nonzero()[0])]
            raise ValueError(
                f"table {name!r} is in host memory with a cache, whose cost the trained network does not know; place by "
                "published figures (`--hardware h100 --placer prior`), which do, or keep all tables in device memory"
            )
        tables = shards.tables
        own = replace(tables, pooling_factor=tables.pooling_factor * shards.batch_share.to(tables.pooling_factor.dtype))
        alone = replace(self.task, tables=own, memory_bytes=2**62, constraints=UNCONSTRAINED)
        latents = self.network.encode(self.normaliser(own), self.network.ratios(alone)).clone()
        latents[:, self.network.layout.dims] *= shards.is_any(*ON_ONE_DEVICE)
        return latents

    @torch.no_grad()
    def loads(self, shards: Shards) -> Floats:
        """See `SearchCosts`."""
        return self.shard_latents(shards).double().numpy()

    @torch.no_grad()
    def law(self) -> DeviceLaw:
        """See `SearchCosts`."""
        points, hosts = curve_points(), -(-self.task.num_devices // self.devices_per_host)
        nothing, curves = np.zeros(len(points)), np.zeros((4, len(points)))
        nowhere = np.zeros((len(points), hosts))
        curves[ROWS] = self.collectives_ms(CollectiveLoad(points, nothing, nowhere)).sum(axis=1)
        curves[COPIES] = self.collectives_ms(CollectiveLoad(nothing, points, nowhere)).sum(axis=1)
        busiest = np.concatenate([points[:, None], nowhere[:, 1:]], axis=1)
        curves[HOSTS] = self.collectives_ms(CollectiveLoad(nothing, nothing, busiest)).sum(axis=1)
        return network_law(self.network.weights(), self.task.num_devices, curves)

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """See `SearchCosts`."""
        shards = Shards.of(task, placement)
        sums = shard_sums(self.shard_latents(shards), shards.device[None], task.num_devices)
        phases_ms = self.network.phases_ms(sums)[0].clamp(min=0)
        carried = shards.collectives()
        load = CollectiveLoad(
            np.array([float(carried.row_wise_dims)]),
            np.array([float(carried.all_reduce_bytes)]),
            carried.host_dims.double().numpy()[None],
        )
        phases_ms[:, 1:3] += torch.from_numpy(self.collectives_ms(load)).float()
        return DeviceCosts.from_phases(phases_ms)

    def collectives_ms(self, load: CollectiveLoad) -> Figures:
        """`[N, 2]` forward and backward of all but the all-to-all."""
        total: Figures = self._all_to_all(load.row_dims)
        batch_size = self.task.batch_size or int(self.network.exchanges.batch_size) or DEFAULT_BATCH
        total[:, _BACKWARD] += 2 * self._all_to_all(load.all_reduce_bytes / (VECTOR_BYTES * batch_size))[:, _BACKWARD]
        widest = load.host_dims.max(axis=1)
        total += self._within_host(widest)
        if load.host_dims.shape[1] > 1:
            total += self._across_hosts(widest / self.devices_per_host)
        return total

    @cached_property
    def _all_to_all(self) -> Callable[[Figures], Figures]:
        return self._curve(self.network.exchanges.topology(self.task.num_devices, self.task.devices_per_host))

    @cached_property
    def _within_host(self) -> Callable[[Figures], Figures]:
        return self._curve(Topology(self.devices_per_host, self.devices_per_host))

    @cached_property
    def _across_hosts(self) -> Callable[[Figures], Figures]:
        return self._curve(Topology(-(-self.task.num_devices // self.devices_per_host), 1))

    def _curve(self, shape: Topology) -> Callable[[Figures], Figures]:
        """`[N, 2]` milliseconds, forward and backward, of all-to-alls of these dims on every device; 0 for none."""
        grid = np.geomspace(_LEAST_DIMS, _MOST_DIMS, _POINTS)
        share = (shape.num_devices - 1) / shape.num_devices
        times = np.zeros((_POINTS, 2))
        for i, dims in enumerate(grid):
            weights = self.network.exchanges.weights_ms(shape, float(dims) * shape.num_devices)
            weights = self.network.weights().comm_ms if weights is None else weights  # [2, 4]
            times[i] = (weights[:, 0] + weights[:, 1:].sum(dim=1) * (share * dims / _HUNDRED)).clamp(min=0).numpy()
        if shape.num_devices == 1:
            times[:] = 0.0

        def milliseconds(dims: Figures) -> Figures:
            values = np.stack([np.interp(dims, grid, times[:, phase]) for phase in (_FORWARD, _BACKWARD)], axis=1)
            return np.where(np.asarray(dims)[:, None] > 0, values, 0.0)

        return milliseconds
