"""The reasons for a placement's cost: each table's share of it, and its cost elsewhere.

A device runs its tables fused, so its cost is no sum over its tables. A table's *contribution* is the saving of the device
without it. Its *shares* of the device's phases add up to them, except parts that no table of the device has a share in:

- Compute is divided by the savings of the device in that phase without each table.
- Communication is divided among the kinds of collectives by the time that each takes. Then the all-to-all and the collectives
  of row-wise tables, or of tables on one host, are divided by columns, and the all-reduce of data-parallel copies by bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.cost_model.compiled import NUM_CURVES, TRAFFIC
from dreamshard.costs import PHASES
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SPLIT_BY_COLUMNS,
    Columns,
    Placement,
    ShardingType,
    TableSharding,
    even_columns,
    most_ranges,
)
from dreamshard.search.costs import Predictor, changed_ms, costs_of, known_costs
from dreamshard.shards import Shards, allowed_devices
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

_OTHER_DEVICES = 4  # of the fastest ones, on which each table is tried
_COMPUTE, _COMMUNICATION = (0, 3), (1, 2)  # of PHASES


@dataclass(frozen=True)
class Contribution:
    """Milliseconds that a device would save without a table."""

    table: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class DeviceReason:
    """A device's cost, and the tables behind it.

    Attributes:
        phases_ms: by the names of `PHASES`.
        contributions: of its tables, largest first; they do not add up to the total, since some costs are shared.
    """

    device: int
    total_ms: float
    phases_ms: Mapping[str, float]
    memory_bytes: int
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A table sharded otherwise, everything else staying as it is.

    Attributes:
        overall_ms: predicted for all tables.
        extra_ms: more than now; below zero if it would be better.
    """

    sharding_type: ShardingType
    where: tuple[int, ...]
    overall_ms: float
    extra_ms: float


@dataclass(frozen=True, kw_only=True)
class TableReason:
    """Reasons for a table's place.

    Attributes:
        ms: that its slowest device would save without it.
        next_place: the best other device (or host) for it; None if none is allowed and has room.
        next_way: the best other way to shard it; None if none is allowed and has room.
        bound: why there is no next place or way, in a few words; empty if either is there.
    """

    table: str
    sharding_type: ShardingType
    where: tuple[int, ...]
    cached_share: float | None
    ms: float
    next_place: Alternative | None
    next_way: Alternative | None
    bound: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A placement explained; tables that cost most come first."""

    overall_ms: float
    devices: tuple[DeviceReason, ...]
    tables: tuple[TableReason, ...]


def explain(task: PlacementTask, placement: Placement, predictor: Predictor) -> Explanation:
    """The reasons for each device's cost, and the cost of each table's next best place and way to shard.

    Args:
        task: whose tables are placed.
        placement: of the task's tables.
        predictor: of costs.

    Raises:
        ValueError: the predictor has no costs of such shards.
    """
    model, tables, shards = costs_of(predictor, task, placement), task.tables, Shards.of(task, placement)
    costs, used = predictor.predict(task, placement), shards.memory_bytes().tolist()
    phases_ms, device_ms = costs.phases_ms(), costs.device_ms().double()  # [D, 4], [D]
    now_ms = changed_ms(model, placement, [(0, placement.tables[0])])[0][0]  # [D] in the model's own precision
    without_ms, _ = changed_ms(model, placement, [(t, None) for t in range(len(tables))])  # [T, D]
    saved, held = now_ms - without_ms, torch.zeros(without_ms.shape, dtype=torch.bool)
    held[shards.table, shards.device] = True
    devices = tuple(
        DeviceReason(
            device=d,
            total_ms=float(device_ms[d]),
            phases_ms=dict(zip(PHASES, phases_ms[d].tolist(), strict=True)),
            memory_bytes=used[d],
            contributions=tuple(
                Contribution(tables.names[t], float(saved[t, d]))
                for t in saved[:, d].argsort(descending=True, stable=True).tolist()
                if held[t, d]
            ),
        )
        for d in range(task.num_devices)
    )
    allowed = allowed_devices(task)
    others = [list(_others(task, placement, t, without_ms[t], allowed[t])) for t in range(len(tables))]
    flat = [(t, other) for t, found in enumerate(others) for other in found]
    alternatives: list[list[Alternative]] = [[] for _ in others]
    if flat:
        after_ms, fits = changed_ms(model, placement, flat)
        extra_ms = after_ms.max(dim=1).values - now_ms.max()
        for (t, other), extra, has_room in zip(flat, extra_ms.tolist(), fits.tolist(), strict=True):
            if has_room:
                overall_ms = float(device_ms.max()) + extra
                found = Alternative(
                    sharding_type=other.sharding_type, where=other.where, overall_ms=overall_ms, extra_ms=extra
                )
                alternatives[t].append(found)
    largest = torch.where(held, saved, -torch.inf).max(dim=1).values.tolist()  # [T]
    reasons = [
        _reason(tables.names[t], each, largest[t], alternatives[t], bool(others[t]))
        for t, each in enumerate(placement.tables)
    ]
    return Explanation(
        overall_ms=float(device_ms.max()), devices=devices, tables=tuple(sorted(reasons, key=lambda each: -each.ms))
    )


def _others(
    task: PlacementTask,
    placement: Placement,
    table: int,
    without_ms: Float[Tensor, " D"],
    allowed: Bool[Tensor, " D"],
) -> Iterator[TableSharding]:
    """Other places of a table on the devices that are fastest without it, and other ways to shard it; none if it is tied."""
    constraints, name = task.constraints, parent_name(task.tables.names[table])
    sharding, per_host, dim = placement.tables[table], placement.devices_per_host, int(task.tables.dim[table])
    if any(name in group for group in (*constraints.together, *constraints.apart)):
        return
    devices = [d for d in without_ms.argsort(stable=True).tolist() if allowed[d]]
    hosts = [] if placement.num_devices % per_host else list(dict.fromkeys(d // per_host for d in devices))
    hosts = [h for h in hosts if allowed[h * per_host : (h + 1) * per_host].all()]
    if sharding.sharding_type in ON_ONE_DEVICE:
        slowest = max(sharding.where, key=lambda d: float(without_ms[d]))
        yield from (
            _moved(sharding, slowest, d) for d in [d for d in devices if d not in sharding.where][:_OTHER_DEVICES]
        )
    elif sharding.sharding_type in ON_ONE_HOST:
        new = [h for h in hosts if h not in sharding.where]
        yield from (_moved(sharding, old, h) for h in new for old in dict.fromkeys(sharding.where))
    for kind in constraints.sharding_types_for(name) if sharding.cached_share is None else ():
        columns: Columns = ()
        if kind in SPLIT_BY_COLUMNS:
            parts = int(min(2, most_ranges(dim, constraints.narrowest_columns_of.get(name, 0))))
            columns = even_columns(dim, parts) if parts > 1 else ()
        places = hosts if kind in ON_ONE_HOST else devices
        count = 0 if kind in ON_EVERY_DEVICE else max(len(columns), 1)
        is_same = kind == sharding.sharding_type or (placement.num_hosts == 1 and kind in ON_ONE_HOST)  # as row-wise
        may_be = bool(allowed.all()) if kind in ON_EVERY_DEVICE else len(places) >= count
        if may_be and not is_same and bool(columns) == (kind in SPLIT_BY_COLUMNS):
            yield TableSharding(kind, columns, tuple(places[:count]))


def _moved(sharding: TableSharding, old: int, new: int) -> TableSharding:
    """With the ranges of columns of one place at another one instead."""
    return replace(sharding, where=tuple(new if each == old else each for each in sharding.where))


def _reason(name: str, sharding: TableSharding, ms: float, found: Sequence[Alternative], tried: bool) -> TableReason:
    def best(same_way: bool) -> Alternative | None:
        fitting = [each for each in found if (each.sharding_type == sharding.sharding_type) == same_way]
        return min(fitting, key=lambda each: each.overall_ms, default=None)

    bound = "nothing else has room" if tried else "its constraints leave nothing else"
    return TableReason(
        table=name,
        sharding_type=sharding.sharding_type,
        where=sharding.where,
        cached_share=sharding.cached_share,
        ms=ms,
        next_place=best(True),
        next_way=best(False),
        bound="" if found else bound,
    )


@dataclass(frozen=True, kw_only=True)
class TableShares:
    """Each table on each device that holds some of it: `P` such pairs, by table and then by device.

    Attributes:
        table: `[P]` number of the task's table.
        device: `[P]`.
        memory_bytes: `[P]` of device memory.
        phases_ms: `[P, 4]` share of each phase; None if no costs are known.
        rest_ms: `[D, 4]` of each device, in which no table has a part; None if no costs are known.
        num_devices: `D`.
    """

    table: Int[Tensor, " P"]
    device: Int[Tensor, " P"]
    memory_bytes: Int[Tensor, " P"]
    phases_ms: Float[Tensor, "P 4"] | None
    rest_ms: Float[Tensor, "D 4"] | None
    num_devices: int

    @property
    def device_bytes(self) -> Int[Tensor, " D"]:
        """Device memory in use."""
        return self.memory_bytes.new_zeros(self.num_devices).index_add_(0, self.device, self.memory_bytes)


@torch.no_grad()
def table_shares(task: PlacementTask, placement: Placement, predictor: Predictor | None) -> TableShares:
    """Divide the predicted cost of each device, and its memory, among its tables.

    Args:
        task: whose tables are placed.
        placement: of the task's tables.
        predictor: of costs; None for memory alone.

    Returns:
        Without costs also if the predictor has none of such shards.
    """
    shards = Shards.of(task, placement)
    pairs, pair = torch.unique(shards.table * task.num_devices + shards.device, return_inverse=True)
    table, device = pairs // task.num_devices, pairs % task.num_devices
    found = TableShares(
        table=table,
        device=device,
        memory_bytes=torch.zeros(len(pairs), dtype=torch.int64).index_add_(0, pair, shards.device_bytes),
        phases_ms=None,
        rest_ms=None,
        num_devices=task.num_devices,
    )
    model = None if predictor is None else known_costs(predictor, task, placement)
    if model is None:
        return found
    loads = torch.from_numpy(model.loads(shards))
    own = loads.new_zeros(len(pairs), loads.shape[1]).index_add_(0, pair, loads)  # [P, L]
    sums = loads.new_zeros(task.num_devices, loads.shape[1]).index_add_(0, device, own)  # [D, L]
    rest_ms = model.phases_ms(sums[None].numpy())[0].double()  # [D, 4]
    without_ms = model.phases_ms((sums[device] - own)[:, None].numpy())[:, 0]  # [P, 4]
    saved = (rest_ms[device] - without_ms).clamp(min=0)
    phases_ms = rest_ms.new_zeros(len(pairs), len(PHASES))

    def divide(phase: int, whole_ms: Float[Tensor, " D"], weights: Float[Tensor, " P"]) -> None:
        """Give each pair its part of some of a device's milliseconds, by weight."""
        total = whole_ms.new_zeros(task.num_devices).index_add_(0, device, weights.double())
        parts = weights / total.clamp(min=1e-300)[device] * whole_ms[device]
        phases_ms[:, phase] += parts
        rest_ms[:, phase] -= whole_ms * (total > 0)

    for phase in _COMPUTE:
        divide(phase, rest_ms[:, phase].clone(), saved[:, phase])
    widths = (
        torch.zeros(len(pairs)).double().index_add_(0, pair, shards.is_any(*ON_ONE_DEVICE) * shards.tables.dim.double())
    )
    all_to_all_ms = model.own_phases_ms(sums[None, :, : -len(TRAFFIC)].contiguous().numpy())[0].double()
    carried = {kind: sums[:, kind - NUM_CURVES].max() for kind in TRAFFIC}
    for phase, way in zip(_COMMUNICATION, (0, 1), strict=True):
        divide(phase, all_to_all_ms[:, phase], widths)
        for kind, most in carried.items():
            ms = float(model.collective_ms(kind, most[None].numpy())[0, way]) if most else 0.0
            divide(phase, torch.full_like(rest_ms[:, 0], ms), own[:, kind - NUM_CURVES])
    return replace(found, phases_ms=phases_ms, rest_ms=rest_ms)
