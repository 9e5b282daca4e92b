"""HugeCTR's planner of NVIDIA's MLPerf submissions of DLRM-DCNv2 (NVIDIA-Merlin/HugeCTR, `samples/dlrm/sharding`).

A shard costs its device its hotness (lookups per sample) and a constant for its vector in the all-to-all. Shards go, the
hottest first, each to the cheapest device with room that holds no other shard of its table. Up to 20 times, the table of the
hottest shard, or one without room, is split in twice as many; the plan with the least of the largest costs is kept, or all
tables on all devices if that is cheaper. Small tables are copied to all devices. Several hosts are planned as devices, and a
table on a host is on all of its devices, as in the submissions on several nodes (`hier_auto`).

HugeCTR splits rows among any devices, by the remainder of a row's number; TorchRec has no such way, so `HugeCtrPlanner`
splits columns, and rows if a table is on all devices or all of a host. HugeCTR's vectors are equally wide; here hotness and
vectors count by dim.
"""

from dataclasses import dataclass

import numpy as np

from dreamshard.cost_model.compiled import Floats, Ints
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.search.packing import packed, packed_columns
from dreamshard.tables import Placement, TableSharding, even_columns, most_ranges
from dreamshard.tasks import OrderedPlacer, PlacementTask, violation

_TRIALS = 20
_WORK = 4  # transfers of a vector's bytes in memory per lookup, over transfers between devices per vector
COPIED_BYTES = 8_000_000
"""Below which a table is copied, in the submission on one node."""


def plan(
    hotness: Floats, vector_cost: Floats, table_bytes: Ints, capacity_bytes: Ints, most: Ints
) -> list[list[int]] | None:
    """Devices of each table's shards; None if no plan fits.

    Args:
        hotness: `[T]` cost of a table's lookups, shared by its shards.
        vector_cost: `[T]` cost of each shard, added to that.
        table_bytes: `[T]` shared by its shards too.
        capacity_bytes: `[D]`.
        most: `[T]` shards that a table may have.
    """
    parts, num_devices = np.ones(len(hotness), np.int64), len(capacity_bytes)
    best: list[list[int]] | None = None
    least = np.inf
    if (most >= num_devices).all() and (table_bytes.sum() / num_devices <= capacity_bytes).all():
        best, least = [list(range(num_devices))] * len(parts), hotness.sum() / num_devices + vector_cost.sum()
    for _ in range(_TRIALS):
        places: list[list[int]] = [[] for _ in parts]
        cost, room, wanted = np.zeros(num_devices), capacity_bytes.astype(np.float64), -1
        shards = np.repeat(np.arange(len(parts)), parts)
        for t in shards[np.argsort(-(hotness / parts)[shards], kind="stable")].tolist():
            size = table_bytes[t] / parts[t]
            able = [d for d in range(num_devices) if room[d] >= size and d not in places[t]]
            if not able:
                wanted = t
                break
            device = min(able, key=cost.__getitem__)
            places[t].append(device)
            cost[device] += hotness[t] / parts[t] + vector_cost[t]
            room[device] -= size
        may_split = 2 * parts <= np.minimum(most, num_devices)
        if wanted < 0:
            wanted = int(np.where(may_split, hotness / parts, -1).argmax())
            if cost.max() < least:
                best, least = places, cost.max()
        if not may_split[wanted]:
            break
        parts[wanted] *= 2
    return best


@dataclass(frozen=True)
class HugeCtrPlanner(OrderedPlacer):
    """HugeCTR's planner as a placer; it knows no constraints of single tables.

    Attributes:
        spec: its bandwidths weigh vectors against lookups.
    """

    spec: AcceleratorSpec
    name: str = "hugectr"

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Packs tables if no plan fits; raises NoPlacementError if packing finds no room."""
        tables, types, num_devices = task.tables, task.constraints.usual_types, task.num_devices
        per_host = min(task.devices_per_host or self.spec.devices_per_host, num_devices)
        on_hosts = "table_row_wise" in types and num_devices > per_host and num_devices % per_host == 0
        group, rate = (per_host, self.spec.network_bytes_per_s) if on_hosts else (1, self.spec.link_bytes_per_s)
        dim, table_bytes = tables.dim.numpy(), task.table_bytes.numpy()
        by_columns = ("grid_shard" if on_hosts else "column_wise") in types
        copied = (table_bytes < COPIED_BYTES) & ("data_parallel" in types)
        devices = plan(
            ~copied * tables.pooling_factor.double().numpy() * dim,
            ~copied * self.spec.memory_bytes_per_s / rate / _WORK * tables.sent_dim.double().numpy(),
            ~copied * table_bytes,
            task.capacity_bytes.numpy().reshape(-1, group).sum(axis=1) - group * table_bytes[copied].sum(),
            np.maximum(most_ranges(dim) if by_columns else 1, copied * num_devices),
        )
        shardings = [TableSharding("data_parallel")] * len(dim)
        for t, where in enumerate(devices or ()):
            columns = even_columns(int(dim[t]), len(where))
            if copied[t]:
                continue
            if "row_wise" in types and 1 < len(where) == num_devices // group:
                shardings[t] = TableSharding("row_wise")
            elif not on_hosts:
                shardings[t] = TableSharding.by_columns(columns, where)
            elif len(where) == 1:
                shardings[t] = TableSharding("table_row_wise", where=tuple(where))
            else:
                shardings[t] = TableSharding("grid_shard", columns, tuple(where))
        placement = Placement(tuple(shardings), num_devices, per_host)
        if devices and not violation(task, placement, is_measured=True):
            return placement
        return packed_columns(task) if by_columns and not on_hosts else Placement.whole(packed(task), num_devices)
