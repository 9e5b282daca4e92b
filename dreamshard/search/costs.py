"""What a search asks of a cost model, by a trained network and by a preset's roofline.

Every shard is a load that adds up on its device; `DeviceLaw` says what the sums cost.

A trained network has seen whole tables and column shards, and all-to-alls. Its other predictions follow from these:

- A block of rows, or a data-parallel copy, computes as a table with its rows and its share of the lookups. The partial sums
  that a block writes for samples without lookups in it, and the dense update of a copy, are not known to the network.
- A reduce-scatter or an all-gather of row-wise tables takes as long as an all-to-all in which every device sends as much.
- An all-reduce takes twice as long as that.
- Tables on one host take a reduce-scatter among its devices, and an all-to-all among as many devices as there are hosts, each
  on a host of its own.

It predicts no tables in host memory: nothing measured tells what a cache costs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.cost_model import CostNetwork, Normaliser, shard_sums
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
from dreamshard.cost_model.exchanges import Topology
from dreamshard.cost_model.structured import DIMS, StructuredCostNetwork
from dreamshard.costs import DeviceCosts
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import (
    THERE_AND_BACK,
    VECTOR_BYTES,
    Operation,
    all_to_all_s,
    host_exchange_s,
    ring_s,
    vector_bytes,
)
from dreamshard.hardware.loads import placed_loads
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.placement import ON_ONE_DEVICE, Placement
from dreamshard.shards import Shards
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask

Figures = NDArray[np.floating[Any]]

_FORWARD, _BACKWARD = 0, 1
_POINTS = 24  # of a curve of all-to-alls
_LEAST_DIMS, _MOST_DIMS = 1.0, 1e6  # of a curve
_HUNDRED = 100  # dims in a unit of the network's widths


@runtime_checkable
class SearchCosts(Protocol):
    """Costs of the shards of one task."""

    @property
    def devices_per_host(self) -> int:
        """Devices that share a host."""
        ...

    @property
    def column_gain(self) -> float:
        """Share of the cost that splitting tables by columns must save, as large as the error of predicting it."""
        ...

    @property
    def spread_gain(self) -> float:
        """The same of other ways to shard."""
        ...

    def loads(self, shards: Shards) -> Floats:
        """`[S, L]` additive loads.

        Raises:
            ValueError: a table is in host memory, and the costs know no such tables.
        """
        ...

    def law(self, *, spread: bool = True) -> DeviceLaw:
        """Costs of summed loads; `spread` with those of tables on several devices."""
        ...

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase."""
        ...


@dataclass(frozen=True)
class CollectiveLoad:
    """What collectives beside the all-to-all of table- and column-wise shards carry, for `N` placements.

    Attributes:
        row_dims: `[N]` dims of row-wise tables.
        all_reduce_bytes: `[N]` of the gradients of data-parallel tables.
        host_dims: `[N, H]` dims of tables on each host.
    """

    row_dims: Figures
    all_reduce_bytes: Figures
    host_dims: Figures


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
        """Additive loads as the network's latents; raises as `SearchCosts.loads`."""
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
        latents[:, DIMS] *= shards.is_any(*ON_ONE_DEVICE)
        return latents

    @torch.no_grad()
    def loads(self, shards: Shards) -> Floats:
        """See `SearchCosts`."""
        return self.shard_latents(shards).double().numpy()

    @torch.no_grad()
    def law(self, *, spread: bool = True) -> DeviceLaw:
        """See `SearchCosts`."""
        points, hosts = curve_points(), -(-self.task.num_devices // self.devices_per_host)
        nothing, curves = np.zeros(len(points)), np.zeros((4, len(points)))
        nowhere = np.zeros((len(points), hosts))
        if spread:
            curves[ROWS] = self.collectives_ms(CollectiveLoad(points, nothing, nowhere)).sum(axis=1)
            curves[COPIES] = self.collectives_ms(CollectiveLoad(nothing, points, nowhere)).sum(axis=1)
            busiest = np.concatenate([points[:, None], nowhere[:, 1:]], axis=1)
            curves[HOSTS] = self.collectives_ms(CollectiveLoad(nothing, nothing, busiest)).sum(axis=1)
        return self.network.law(self.task.num_devices, curves)

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
        if placement.sharding_types - set(ON_ONE_DEVICE):
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
        for i, dims in enumerate(grid if shape.num_devices > 1 else ()):
            weights = self.network.exchanges.weights_ms(shape, float(dims) * shape.num_devices)
            weights = self.network.comm_ms if weights is None else weights  # [2, 4]
            times[i] = (weights[:, 0] + weights[:, 1:].sum(dim=1) * (share * dims / _HUNDRED)).clamp(min=0).numpy()

        def milliseconds(dims: Figures) -> Figures:
            values = np.stack([np.interp(dims, grid, times[:, phase]) for phase in (_FORWARD, _BACKWARD)], axis=1)
            return np.where(np.asarray(dims)[:, None] > 0, values, 0.0)

        return milliseconds


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

    def law(self, *, spread: bool = True) -> DeviceLaw:
        """See `SearchCosts`."""
        points, num_devices = torch.from_numpy(curve_points()), self.task.num_devices
        curves = np.zeros((4, len(points)))
        sent_bytes = vector_bytes(points[:, None].expand(-1, num_devices), self.batch_size)
        curves[ALL_TO_ALL] = 2e3 * all_to_all_s(sent_bytes, self.spec, self.devices_per_host)[:, 0].numpy()
        if spread:
            rows_bytes = vector_bytes(points, self.batch_size)
            rings = [self._ring_s(rows_bytes, operation) for operation in THERE_AND_BACK]
            curves[ROWS] = 1e3 * torch.stack(rings).sum(dim=0).numpy()
            curves[COPIES] = 1e3 * self._ring_s(points, "all_reduce").numpy()
            per_host, hosts = self.devices_per_host, -(-num_devices // self.devices_per_host)
            busiest = torch.nn.functional.pad(points[:, None], (0, hosts - 1))  # [G, H]
            exchanges = [
                host_exchange_s(busiest, self.batch_size, per_host, self.spec, per_host, operation)
                for operation in THERE_AND_BACK
            ]
            curves[HOSTS] = 1e3 * torch.stack(exchanges).sum(dim=0)[:, 0].numpy()
        return roofline_law(self.spec, self.batch_size, curves)

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """See `SearchCosts`."""
        return sharding_costs(task, Shards.of(task, placement), self.batch_size, self.spec)

    def _ring_s(self, num_bytes: Tensor, operation: Operation) -> Tensor:
        return ring_s(num_bytes, self.task.num_devices, self.spec, self.devices_per_host, operation)
