"""Costs of shards: one cost model for the search, greedy, explanations, and moving, by a trained network or a preset.

Every shard is a load that adds up on its device. A device's compute and its all-to-all follow from the sum of its loads. The
last columns of a load are the traffic of other collectives: all devices wait for the largest, as in the all-to-all.

A trained network has seen whole tables and column shards, and all-to-alls. Its other predictions follow from these:

- A block of rows, or a data-parallel copy, computes as a table with its rows and its share of the lookups. The partial sums
  that a block writes for samples without lookups in it, and the dense update of a copy, are not known to the network.
- A reduce-scatter or an all-gather of row-wise tables takes as long as an all-to-all in which every device sends as much.
- An all-reduce takes twice as long as that.
- Tables on one host take a reduce-scatter among its devices, and an all-to-all among as many devices as there are hosts, each
  on a host of its own.

It predicts no tables in host memory: nothing measured tells what a cache costs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.compiled import (
    COPIES,
    CURVE_VALUES,
    DIMS,
    HOSTS,
    NUM_CURVES,
    ROWS,
    TRAFFIC,
    DeviceLaw,
    Floats,
    roofline_law,
)
from dreamshard.cost_model.exchanges import ExchangeShape
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import VECTOR_BYTES, collectives_s
from dreamshard.hardware.roofline import DIM, figures_of, operators_s, placed_loads, require_host_link
from dreamshard.tables import DEFAULT_BATCH, ON_ONE_DEVICE, Placement, TableSharding
from dreamshard.tasks import PlacementTask, Shards

_AT_ONCE = 2**22  # numbers of the loads of changed placements that are in memory at once
_PAPER = (
    "the paper's cost network predicts whole tables and columns only, since it does not tell an all-to-all from compute; "
    "train the algorithm dreamshard, or use a preset"
)


class CostModel(ABC):
    """Costs of the shards of one task.

    Attributes:
        task: whose shards it costs.
        devices_per_host: devices that share a host.
        unevenness: share by which devices with unlike tables may cost less than if all had the same share of every load.
    """

    task: PlacementTask
    devices_per_host: int
    unevenness: ClassVar[float]

    @property
    def narrowest(self) -> int:
        """Fewest columns of a shard whose cost is known; narrower shards are for tables that fit no device."""
        return 1

    @property
    def relative_error(self) -> float:
        """Relative standard error of a device's predicted cost."""
        return 0.0

    @property
    def excess(self) -> float:
        """Share of the cost by which errors make the slowest of e equal devices slower than predicted."""
        num_devices = self.task.num_devices
        equal = DeviceCosts(torch.full((num_devices, len(PHASES)), 1 / len(PHASES)), self.relative_error)
        return (float(equal.overall_ms()) - 1) / math.log(num_devices) if num_devices > 1 else 0.0

    @property
    def prices_caches(self) -> bool:
        """Whether it has costs of tables in host memory."""
        return False

    def loads(self, shards: Shards) -> Floats:
        """`[S, L]` additive loads; the last columns are `TRAFFIC`.

        Raises:
            ValueError: the model has no costs of such shards.
        """
        runs = shards.table.where(shards.is_any("data_parallel"), ~torch.arange(len(shards.table)))
        is_new = runs.diff(prepend=runs[:1] - 1) != 0  # copies of a table are alike, and follow one another
        some = shards.select(is_new)
        loads = torch.cat([self.own_loads(some), some.traffic[:, 1:]], dim=1).double()
        return loads[is_new.cumsum(0) - 1].numpy()

    @abstractmethod
    def own_loads(self, shards: Shards) -> Float[Tensor, "S K"]:
        """`loads` without `TRAFFIC`."""

    @abstractmethod
    def law(self, *, on_several: bool = True) -> DeviceLaw:
        """Costs of summed loads for compiled functions; `on_several` with those of tables on several devices."""

    @abstractmethod
    def phases_ms(self, sums: Floats) -> Float[Tensor, "N D 4"]:
        """Milliseconds per device and phase of `N` placements, from their loads `[N, D, L]` summed over each device."""

    @abstractmethod
    def collectives_ms(self, most: Float[Tensor, "N 4"]) -> Float[Tensor, "N 2"]:
        """Forward and backward, by `Shards.traffic` of the device that carries most."""

    def curves(self, *, on_several: bool) -> Floats:
        """Curves of a `DeviceLaw`, only of the all-to-all unless tables may be `on_several`."""
        curves = np.zeros((NUM_CURVES, len(CURVE_VALUES)))
        for kind in range(NUM_CURVES if on_several else 1):
            alone = torch.from_numpy(CURVE_VALUES)[:, None] * torch.eye(NUM_CURVES)[kind]
            curves[kind] = self.collectives_ms(alone).sum(1).numpy()
        return curves

    def sums(self, shards: Shards) -> Floats:
        """`[D, L]` loads of a placement's shards, summed over each device."""
        return shards.per_device(torch.from_numpy(self.loads(shards))).numpy()

    def predict(self, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase; raises as `loads`."""
        return DeviceCosts(self.phases_ms(self.sums(Shards.of(self.task, placement))[None])[0], self.relative_error)


def changed_ms(
    model: CostModel, placement: Placement, changes: Sequence[tuple[int, TableSharding | None]]
) -> tuple[Float[Tensor, "N D"], Bool[Tensor, " N"]]:
    """Each device's cost if one table were sharded otherwise, or gone, and whether all tables would then fit."""
    task, now = model.task, Shards.of(model.task, placement)
    new = [(n, t, sharding) for n, (t, sharding) in enumerate(changes) if sharding is not None]
    after, of_range = Shards.of_tables(task, [(t, sharding) for _, t, sharding in new], placement.devices_per_host)
    numbers = [n for n, _, sharding in new for _ in range(max(len(sharding.columns), 1))]
    of_change = np.array(numbers, np.int64)[of_range.numpy()]  # [S]
    loads, sums, new_loads = model.loads(now), model.sums(now), model.loads(after)
    costs_ms, fits, at_once = [], [], max(_AT_ONCE // sums.size, 1)
    for begin in range(0, len(changes), at_once):
        tables = np.array([t for t, _ in changes[begin : begin + at_once]])
        of_gone, gone = np.nonzero(tables[:, None] == now.table.numpy())
        come = np.flatnonzero((of_change >= begin) & (of_change < begin + len(tables)))
        changed = np.repeat(sums[None], len(tables), axis=0)
        used = np.repeat(now.memory_bytes().numpy()[None], len(tables), axis=0)
        for sign, number, shards, rows, shard_loads in (
            (-1, of_gone, now, gone, loads),
            (1, of_change[come] - begin, after, come, new_loads),
        ):
            where = number, shards.device.numpy()[rows]
            np.add.at(changed, where, sign * shard_loads[rows])
            np.add.at(used, where, sign * shards.device_bytes.numpy()[rows])
        costs_ms.append(model.phases_ms(changed).sum(-1).double())
        fits.append(torch.from_numpy((used <= task.capacity_bytes.numpy()).all(axis=1)))
    return torch.cat(costs_ms), torch.cat(fits)


@dataclass(frozen=True)
class NetworkCosts(CostModel):
    """Costs by a trained network.

    Attributes:
        network: for the task's devices and hosts (`CostNetwork.for_task`).
        normaliser: of its features.
    """

    task: PlacementTask
    network: CostNetwork
    normaliser: Normaliser
    devices_per_host: int
    unevenness: ClassVar[float] = 0.0

    @classmethod
    def of(cls, task: PlacementTask, network: CostNetwork, normaliser: Normaliser) -> "NetworkCosts":
        """Costs of the task's shards."""
        network, per_host = network.for_task(task), task.devices_per_host or task.num_devices
        if isinstance(network, StructuredCostNetwork):
            per_host = network.exchanges.topology(task).devices_per_host
        return cls(task, network, normaliser, min(per_host, task.num_devices))

    @property
    def narrowest(self) -> int:
        """See `CostModel`."""
        return int(self.network.narrowest) if isinstance(self.network, StructuredCostNetwork) else 1

    @property
    def relative_error(self) -> float:
        """See `CostModel`."""
        return float(self.network.relative_error)

    @torch.no_grad()
    def own_loads(self, shards: Shards) -> Float[Tensor, "S K"]:
        """The network's latents."""
        if bool(shards.in_host.any()):
            name = shards.tables.names[int(shards.in_host.nonzero()[0])]
            raise ValueError(
                f"table {name!r} is in host memory with a cache, whose cost the trained network does not know; place by "
                "published figures (`--hardware h100 --placer prior`), which do, or keep all tables in device memory"
            )
        tables = shards.tables
        factor = tables.pooling_factor * shards.batch_share.to(tables.pooling_factor.dtype)
        features = self.normaliser.of_task(self.task.tables)(replace(tables, pooling_factor=factor))
        latents = self.network.encode(features, self.network.ratios(self.task, shards))
        if isinstance(self.network, StructuredCostNetwork):
            latents = latents.clone()
            latents[:, DIMS] *= shards.in_all_to_all
        elif not bool(shards.is_any(*ON_ONE_DEVICE).all()):
            raise ValueError(_PAPER)
        return latents

    @torch.no_grad()
    def law(self, *, on_several: bool = True) -> DeviceLaw:
        """See `CostModel`.

        Raises:
            ValueError: the network does not tell communication from compute.
        """
        if not isinstance(self.network, StructuredCostNetwork):
            raise ValueError(_PAPER)
        return self.network.law(self.task.num_devices, self.curves(on_several=on_several))

    @torch.no_grad()
    def phases_ms(self, sums: Floats) -> Float[Tensor, "N D 4"]:
        """See `CostModel`."""
        latents, most = torch.from_numpy(sums).float()[..., : -len(TRAFFIC)], torch.from_numpy(sums.max(1))
        phases_ms = self.network.phases_ms(latents).clamp(min=0)
        phases_ms[..., 1:3] += self.collectives_ms(most[:, -NUM_CURVES:])[:, None].float()
        return phases_ms

    @torch.no_grad()
    def collectives_ms(self, most: Float[Tensor, "N 4"]) -> Float[Tensor, "N 2"]:
        """See `CostModel`; without the all-to-all, whose cost depends on more than the widest device."""
        per_host, total_ms = self.devices_per_host, torch.zeros(len(most), 2).double()
        if not isinstance(self.network, StructuredCostNetwork):
            return total_ms
        exchanges = self.network.exchanges
        shape = exchanges.topology(self.task)
        batch_size = self.task.batch_size or int(exchanges.batch_size) or DEFAULT_BATCH
        # dims of the measured batch that one of the task's stands for
        per_batch = batch_size / max(int(exchanges.batch_size), 1)
        for kind, on, units, times in (
            (ROWS, shape, 1, [1, 1]),
            (COPIES, shape, VECTOR_BYTES * batch_size, [0, 2]),
            (HOSTS, ExchangeShape(per_host, per_host), 1, [1, 1]),
            (HOSTS, ExchangeShape(-(-self.task.num_devices // per_host), 1), per_host, [1, 1]),
        ):
            if most[:, kind].any():
                total_ms += exchanges.even_ms(on, per_batch * most[:, kind] / units) * torch.tensor(times)
        return total_ms


@dataclass(frozen=True)
class RooflineCosts(CostModel):
    """Costs by the roofline.

    Attributes:
        spec: figures of the accelerator.
        batch_size: training samples per step.
    """

    task: PlacementTask
    spec: AcceleratorSpec
    batch_size: int
    devices_per_host: int
    unevenness: ClassVar[float] = 0.08

    @classmethod
    def of(cls, task: PlacementTask, spec: AcceleratorSpec) -> "RooflineCosts":
        """Costs of a task's shards on this hardware."""
        per_host = min(task.devices_per_host or spec.devices_per_host, task.num_devices)
        return cls(task, spec, task.batch_size or DEFAULT_BATCH, per_host)

    @property
    def prices_caches(self) -> bool:
        """See `CostModel`."""
        return self.spec.host_bytes_per_s is not None

    def own_loads(self, shards: Shards) -> Float[Tensor, "S K"]:
        """See `CostModel`."""
        require_host_link(self.spec, shards)
        return placed_loads(shards, self.batch_size)

    def law(self, *, on_several: bool = True) -> DeviceLaw:
        """See `CostModel`."""
        one = torch.eye(NUM_CURVES)[:1].double()
        shared_ms = self.collectives_ms(one, torch.ones(1)) - self.collectives_ms(one)  # [1, 2], of a dim on each
        total_ms = float(shared_ms.sum()) / self.task.num_devices
        return roofline_law(self.spec, self.batch_size, self.curves(on_several=on_several), total_ms)

    def phases_ms(self, sums: Floats) -> Float[Tensor, "N D 4"]:
        """See `CostModel`."""
        compute_s = operators_s(figures_of(self.spec, self.batch_size), sums.reshape(-1, sums.shape[-1]))
        compute_ms = 1e3 * torch.from_numpy(compute_s).view(*sums.shape[:2], 2)
        most, mean = torch.from_numpy(sums.max(1)[:, [DIM, -3, -2, -1]]), torch.from_numpy(sums[..., DIM].mean(1))
        comm_ms = self.collectives_ms(most, mean)[:, None].expand_as(compute_ms)
        return torch.cat([compute_ms[..., :1], comm_ms, compute_ms[..., 1:]], dim=-1)

    def collectives_ms(
        self, most: Float[Tensor, "N 4"], mean_dims: Float[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N 2"]:
        """See `CostModel`; without the part of an all-to-all that depends on `mean_dims` if these are left out."""
        per_host, num_devices = self.devices_per_host, self.task.num_devices
        mean_dims = torch.zeros(len(most)) if mean_dims is None else mean_dims
        return 1e3 * collectives_s(most, self.batch_size, num_devices, self.spec, per_host, per_host, mean_dims)
