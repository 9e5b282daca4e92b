"""Costs of many placements that differ in a few tables, from loads that are summed per device.

A table that is sharded in one way has the same loads on whichever devices its shards are. So a placement that differs from
another in a table costs two additions, and only the devices that they touch are computed anew. What is computed here
equals `predict` of the same placer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.load_costs import LoadCosts, NetworkLoads, RooflineLoads
from dreamshard.placement import ON_ONE_HOST, Placement, TableSharding
from dreamshard.search import DreamShardPlacer, RooflinePlacer
from dreamshard.shards import GRADIENT_BYTES, Collectives, Shards
from dreamshard.tasks import PlacementTask

_ROW_WISE, _COPIES, _HOSTS = 0, 1, 2  # columns of `others`; the last is the first of `H`
_CELLS = 2**24  # loads of placements that are in memory at once


@runtime_checkable
class ShardedPredictor(Protocol):
    """What predicts the costs of a placement, however its tables are sharded."""

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase."""
        ...


@dataclass(frozen=True)
class Change:
    """A table that is sharded otherwise; `after` is None where it is taken away."""

    table: int
    before: TableSharding
    after: TableSharding | None


@dataclass(frozen=True)
class Sums:
    """A placement as sums.

    Attributes:
        loads: `[D, L]`.
        counts: `[D]` shards.
        used_bytes: `[D]`.
        others: `[2 + H]` columns of row-wise tables, bytes of copies' gradients, and columns of tables on each host.
        compute_ms: `[D, 2]` forward and backward.
    """

    loads: Float[Tensor, "D L"]
    counts: Int[Tensor, " D"]
    used_bytes: Int[Tensor, " D"]
    others: Float[Tensor, " H2"]
    compute_ms: Float[Tensor, "D 2"]


@dataclass(frozen=True)
class _Variant:
    """The shards of a table that is sharded in one way.

    Attributes:
        loads: `[S, L]`.
        part: `[S]` number of the range of columns.
        offset: `[S]` from where that range is to the shard's device.
        device_bytes: `[S]`.
    """

    loads: Float[Tensor, "S L"]
    part: Int[Tensor, " S"]
    offset: Int[Tensor, " S"]
    device_bytes: Int[Tensor, " S"]


class SummedCosts:
    """Costs of placements of one task, all with the same devices per host."""

    def __init__(self, task: PlacementTask, costs: LoadCosts, devices_per_host: int) -> None:
        self.task, self.costs, self.devices_per_host = task, costs, devices_per_host
        self.num_hosts = -(-task.num_devices // devices_per_host)
        self._variants: dict[tuple[int, TableSharding], _Variant] = {}

    @classmethod
    def of(
        cls, predictor: ShardedPredictor, task: PlacementTask, placements: Sequence[Placement]
    ) -> "SummedCosts | None":
        """Costs of these placements and of others like them; None where the predictor has none that are summed.

        A trained network knows no tables in host memory, and may know whole tables and column shards only.
        """
        per_host = placements[0].devices_per_host
        if isinstance(predictor, RooflinePlacer):
            return cls(task, RooflineLoads(predictor, task), per_host)
        if isinstance(predictor, DreamShardPlacer):
            costs = NetworkLoads(predictor, task)
            if costs.every_way or all(placement.is_by_columns for placement in placements):
                return cls(task, costs, per_host)
        return None

    @torch.no_grad()
    def sums(self, placement: Placement) -> Sums:
        """The sums of a placement of the task."""
        placed = Shards.of(self.task, placement)
        shard_loads = self.costs.loads(self.task, placed)
        counts = torch.bincount(placed.table, minlength=len(placement.tables)).tolist()
        for t, (sharding, last, count) in enumerate(zip(placement.tables, accumulate(counts), counts, strict=True)):
            own = slice(last - count, last)
            self._remember(t, sharding, placed, own, shard_loads[own])
        num_devices = self.task.num_devices
        loads = shard_loads.new_zeros(num_devices, shard_loads.shape[1]).index_add_(0, placed.device, shard_loads)
        others = torch.stack([self._others(t, each) for t, each in enumerate(placement.tables)]).sum(dim=0)
        held = torch.bincount(placed.device, minlength=num_devices)
        compute_ms = self._compute_ms(loads, held)
        return Sums(loads, held, placed.memory_bytes(), others, compute_ms)

    @torch.no_grad()
    def after(self, sums: Sums, changes: Sequence[Change]) -> Sums:
        """The sums once these tables are sharded otherwise."""
        loads, counts, used, others, touched = self._changed(sums, [changes])
        compute_ms = sums.compute_ms.clone()
        compute_ms[touched[0]] = self._compute_ms(loads[0][touched[0]], counts[0][touched[0]])
        return Sums(loads[0], counts[0], used[0], others[0], compute_ms)

    @torch.no_grad()
    def costs_after(self, sums: Sums, options: Sequence[Sequence[Change]]) -> tuple[DeviceCosts, Int[Tensor, "B D"]]:
        """Costs `[B, D]` and bytes on each device after each of several sets of changes."""
        parts, used_parts = [], []
        size = max(1, _CELLS // sums.loads.numel())
        for first in range(0, len(options), size):
            loads, counts, used, others, touched = self._changed(sums, options[first : first + size])
            compute = sums.compute_ms.expand(len(loads), -1, -1).clone()  # [B, D, 2]
            compute[touched] = self._compute_ms(loads[touched], counts[touched])
            parts.append(self._phases(loads, compute, others))
            used_parts.append(used)
        return DeviceCosts.from_phases(torch.cat(parts)), torch.cat(used_parts)

    @torch.no_grad()
    def costs_of(self, sums: Sums) -> DeviceCosts:
        """`[D]` milliseconds per phase."""
        return DeviceCosts.from_phases(self._phases(sums.loads[None], sums.compute_ms[None], sums.others[None])[0])

    def _phases(
        self, loads: Float[Tensor, "B D L"], compute: Float[Tensor, "B D 2"], others: Float[Tensor, "B H2"]
    ) -> Float[Tensor, "B D 4"]:
        comm = self.costs.comm_ms(loads, [self._collectives(row) for row in others])
        return torch.stack([compute[..., 0], comm[..., 0], comm[..., 1], compute[..., 1]], dim=-1)

    def _compute_ms(self, loads: Float[Tensor, "N L"], counts: Int[Tensor, " N"]) -> Float[Tensor, "N 2"]:
        return self.costs.compute_ms(torch.where(counts[:, None] > 0, loads, 0.0))

    def _changed(
        self, sums: Sums, options: Sequence[Sequence[Change]]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Loads `[B, D, L]`, counts, bytes, others `[B, 2 + H]`, and which devices `[B, D]` a change touches."""
        batch, num_devices = len(options), self.task.num_devices
        self._learn(options)
        cells, loads, signs, device_bytes = [], [], [], []
        others = sums.others.expand(batch, -1).clone()
        for b, changes in enumerate(options):
            for change in changes:
                for sharding, sign in ((change.before, -1), (change.after, 1)):
                    if sharding is None:
                        continue
                    variant, device = self._variant(change.table, sharding)
                    cells.append(b * num_devices + device)
                    loads.append(sign * variant.loads)
                    signs.append(torch.full_like(device, sign))
                    device_bytes.append(sign * variant.device_bytes)
                    others[b] += sign * self._others(change.table, sharding)
        if not cells:
            each = (sums.loads, sums.counts, sums.used_bytes)
            same = [value.expand(batch, *value.shape) for value in each]
            return same[0], same[1], same[2], others, torch.zeros(batch, num_devices, dtype=torch.bool)
        cell = torch.cat(cells)
        changed = sums.loads.repeat(batch, 1).index_add_(0, cell, torch.cat(loads)).reshape(batch, num_devices, -1)
        counts = sums.counts.repeat(batch).index_add_(0, cell, torch.cat(signs)).reshape(batch, num_devices)
        used = sums.used_bytes.repeat(batch).index_add_(0, cell, torch.cat(device_bytes)).reshape(batch, num_devices)
        touched = torch.zeros(batch * num_devices, dtype=torch.bool)
        touched[cell] = True
        changed = torch.where(counts[..., None] > 0, changed, 0.0)
        return changed, counts, used, others, touched.reshape(batch, num_devices)

    def _variant(self, table: int, sharding: TableSharding) -> tuple[_Variant, Int[Tensor, " S"]]:
        """The shards of a table, and their devices."""
        variant = self._variants[table, _anywhere(sharding)]
        return variant, self._bases(sharding)[variant.part] + variant.offset

    def _learn(self, options: Sequence[Sequence[Change]]) -> None:
        """Get the loads of ways to shard that have not been seen yet, one per table at a time."""
        used = (
            (change.table, each) for changes in options for change in changes for each in (change.before, change.after)
        )
        missing: dict[int, dict[TableSharding, TableSharding]] = {}
        for t, sharding in used:
            if sharding is not None and (t, _anywhere(sharding)) not in self._variants:
                missing.setdefault(t, {})[_anywhere(sharding)] = sharding
        queues = {t: list(found.values()) for t, found in missing.items()}
        while queues:
            taken = [(t, queue.pop()) for t, queue in queues.items()]
            queues = {t: queue for t, queue in queues.items() if queue}
            placed = Shards.of_tables(self.task, taken, self.devices_per_host)
            loads, counts, last = self.costs.loads(self.task, placed), torch.bincount(placed.table).tolist(), 0
            for t, sharding in taken:
                own = slice(last, last + counts[t])
                self._remember(t, sharding, placed, own, loads[own])
                last += counts[t]

    def _remember(
        self, table: int, sharding: TableSharding, placed: Shards, own: slice, loads: Float[Tensor, "S L"]
    ) -> None:
        starts = torch.tensor([start for start, _ in sharding.ranges(0)])
        part = torch.searchsorted(starts, placed.columns[own, 0].contiguous())
        offset = placed.device[own] - self._bases(sharding)[part]
        self._variants[table, _anywhere(sharding)] = _Variant(loads, part, offset, placed.device_bytes[own])

    def _bases(self, sharding: TableSharding) -> Int[Tensor, " P"]:
        """The first device of each range of columns; 0 where it is on every device."""
        if not sharding.where:
            return torch.zeros(1, dtype=torch.int64)
        size = self.devices_per_host if sharding.sharding_type in ON_ONE_HOST else 1
        return torch.tensor(sharding.where) * size

    def _others(self, table: int, sharding: TableSharding) -> Float[Tensor, " H2"]:
        others, dim = torch.zeros(_HOSTS + self.num_hosts, dtype=torch.float64), int(self.task.tables.dim[table])
        if sharding.sharding_type == "row_wise":
            others[_ROW_WISE] = dim
        elif sharding.sharding_type == "data_parallel":
            others[_COPIES] = GRADIENT_BYTES * int(self.task.tables.rows[table]) * dim
        elif sharding.sharding_type in ON_ONE_HOST:
            for host, (start, end) in zip(sharding.where, sharding.ranges(dim), strict=True):
                others[_HOSTS + host] += end - start
        return others

    def _collectives(self, others: Float[Tensor, " H2"]) -> Collectives:
        return Collectives(
            all_to_all_dims=torch.zeros(self.task.num_devices, dtype=torch.int64),
            row_wise_dims=int(others[_ROW_WISE]),
            host_dims=others[_HOSTS:].long(),
            all_reduce_bytes=int(others[_COPIES]),
            devices_per_host=self.devices_per_host,
        )


def _anywhere(sharding: TableSharding) -> TableSharding:
    return replace(sharding, where=(0,) * len(sharding.where))
