"""Why a placement costs what it costs: each table's share of it, and what each table would cost elsewhere.

A device runs its tables fused, so what it costs is no sum over its tables. A table's *contribution* is what the device would
save without it. Its *shares* of the device's phases add up to them, except for what no table of the device has a part in:

- Compute is divided by what the device would save in that phase without each table.
- Communication is divided among the kinds of collectives by the time that each takes. Then the all-to-all and the collectives
  of row-wise tables, or of tables on one host, are divided by columns, and the all-reduce of data-parallel copies by bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.cost_model.compiled import ALL_TO_ALL, COPIES, HOSTS, ROWS, DeviceLaw, computes_ms, curve_ms
from dreamshard.costs import PHASES, DeviceCosts
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
from dreamshard.search.changes import Changes, Predictor, known_costs, on_its_hosts
from dreamshard.shards import Shards, allowed_devices
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

_OTHER_DEVICES = 4  # of the fastest ones, on which each table is tried


@dataclass(frozen=True)
class Contribution:
    """Milliseconds that a device would save without a table."""

    table: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class DeviceReason:
    """What a device costs, and which tables make it so.

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
    """Why a table is where it is.

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
    """What makes each device cost what it costs, and what the next best place and way to shard of each table would cost.

    Args:
        task: whose tables are placed.
        placement: of the task's tables.
        predictor: of costs.

    Raises:
        ValueError: the predictor has no costs of such shards.
    """
    ways = list(_ways(task, placement))
    changes = Changes.of(task, predictor.costs(on_its_hosts(task, placement)), placement, ways)
    now_ms = torch.from_numpy(changes.device_ms())  # [D]
    without_ms = torch.from_numpy(changes.after([(t, None) for t in range(len(task.tables))]).device_ms)  # [T, D]
    saved = now_ms - without_ms
    predicted = predictor.predict(task, placement)
    phases_ms, device_ms = predicted.phases_ms(), predicted.device_ms()  # [D, 4], [D]
    shards = Shards.of(task, placement)
    held, used = torch.zeros(saved.shape, dtype=torch.bool), shards.memory_bytes().tolist()
    held[shards.table, shards.device] = True
    devices = tuple(
        DeviceReason(
            device=d,
            total_ms=float(device_ms[d]),
            phases_ms=dict(zip(PHASES, phases_ms[d].tolist(), strict=True)),
            memory_bytes=used[d],
            contributions=_contributions(task, saved[:, d], held[:, d]),
        )
        for d in range(task.num_devices)
    )
    allowed = allowed_devices(task)
    others = [
        list(_others(placement, ways[t], t, without_ms[t], allowed[t])) if not _is_tied(task, t) else []
        for t in range(len(task.tables))
    ]
    flat = [(t, other) for t, found in enumerate(others) for other in found]
    after_ms, fits = changes.after(flat)
    overall_ms = float(device_ms.max())
    extra_ms = after_ms.max(axis=1) - float(now_ms.max())
    alternatives: list[list[Alternative]] = [[] for _ in others]
    for (t, other), extra, has_room in zip(flat, extra_ms.tolist(), fits.tolist(), strict=True):
        if has_room:
            alternatives[t].append(
                Alternative(
                    sharding_type=other.sharding_type,
                    where=other.where,
                    overall_ms=overall_ms + extra,
                    extra_ms=extra,
                )
            )
    largest = torch.where(held, saved, -torch.inf).max(dim=1).values.tolist()  # [T]
    tables = [
        _table_reason(task.tables.names[t], sharding, largest[t], alternatives[t], bool(others[t]))
        for t, sharding in enumerate(placement.tables)
    ]
    return Explanation(
        overall_ms=overall_ms, devices=devices, tables=tuple(sorted(tables, key=lambda reason: -reason.ms))
    )


def _contributions(
    task: PlacementTask, saved: Float[Tensor, " T"], held: Bool[Tensor, " T"]
) -> tuple[Contribution, ...]:
    found = [Contribution(task.tables.names[t], float(saved[t])) for t in held.nonzero().flatten().tolist()]
    return tuple(sorted(found, key=lambda each: -each.ms))


def _is_tied(task: PlacementTask, table: int) -> bool:
    """Whether a table does not move alone."""
    name = parent_name(task.tables.names[table])
    return any(name in group for group in (*task.constraints.together, *task.constraints.apart))


def _ways(task: PlacementTask, placement: Placement) -> Iterator[list[TableSharding]]:
    """Other ways to shard each table that are allowed, wherever it is in them; none of a table in host memory."""
    constraints = task.constraints
    for name, dim, now in zip(task.tables.names, task.tables.dim.tolist(), placement.tables, strict=True):
        own = []
        for kind in constraints.sharding_types_for(parent_name(name)) if now.cached_share is None else ():
            columns: Columns = ()
            if kind in SPLIT_BY_COLUMNS:
                parts = min(2, most_ranges(dim, constraints.narrowest_columns_of.get(parent_name(name), 0)))
                columns = even_columns(dim, parts) if parts > 1 else ()
            is_same = placement.num_hosts == 1 and kind in ON_ONE_HOST  # as row-wise
            if kind != now.sharding_type and not is_same and bool(columns) == (kind in SPLIT_BY_COLUMNS):
                places = 0 if kind in ON_EVERY_DEVICE else max(len(columns), 1)
                own.append(TableSharding(kind, columns, (0,) * places))
        yield own


def _others(
    placement: Placement,
    ways: Sequence[TableSharding],
    table: int,
    without_ms: Float[Tensor, " D"],
    allowed: Bool[Tensor, " D"],
) -> Iterator[TableSharding]:
    """Other places of a table on the devices that are fastest without it, and other ways to shard it."""
    sharding, per_host = placement.tables[table], placement.devices_per_host
    kind, where = sharding.sharding_type, sharding.where
    devices = [d for d in torch.argsort(without_ms, stable=True).tolist() if bool(allowed[d])]
    hosts = [] if placement.num_devices % per_host else list(dict.fromkeys(d // per_host for d in devices))
    hosts = [h for h in hosts if bool(allowed[h * per_host : (h + 1) * per_host].all())]
    if kind in ON_ONE_DEVICE:
        slowest = max(where, key=lambda d: float(without_ms[d]))
        for d in [d for d in devices if d not in where][:_OTHER_DEVICES]:
            yield _moved(sharding, slowest, d)
    elif kind in ON_ONE_HOST:
        for h in hosts:
            for old in dict.fromkeys(where) if h not in where else ():
                yield _moved(sharding, old, h)
    for way in ways:
        places = hosts if way.sharding_type in ON_ONE_HOST else devices
        if way.sharding_type in ON_EVERY_DEVICE and not bool(allowed.all()):
            continue
        if len(places) >= len(way.where):
            yield replace(way, where=tuple(places[: len(way.where)]))


def _moved(sharding: TableSharding, old: int, new: int) -> TableSharding:
    """With the ranges of columns of one place at another one instead."""
    return replace(sharding, where=tuple(new if each == old else each for each in sharding.where))


def _table_reason(
    name: str, sharding: TableSharding, ms: float, found: Sequence[Alternative], tried: bool
) -> TableReason:
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

    @property
    def device_phases_ms(self) -> Float[Tensor, "D 4"] | None:
        """Each device's phases: its tables' shares and the rest."""
        if self.phases_ms is None or self.rest_ms is None:
            return None
        return self.rest_ms.index_add(0, self.device, self.phases_ms)

    def scaled_to(self, costs: DeviceCosts) -> "TableShares":
        """The same parts of other costs, such as measured ones: `[D]` per phase."""
        phases_ms = costs.phases_ms().double()
        whole = self.device_phases_ms
        if whole is None or self.phases_ms is None or self.rest_ms is None:
            nothing = torch.zeros(len(self.table), len(PHASES), dtype=torch.float64)
            return replace(self, phases_ms=nothing, rest_ms=phases_ms)
        factor = torch.where(whole > 0, phases_ms / whole.clamp(min=1e-12), 0.0)
        rest_ms = torch.where(whole > 0, self.rest_ms * factor, phases_ms)
        return replace(self, phases_ms=self.phases_ms * factor[self.device], rest_ms=rest_ms)


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
    shares = TableShares(
        table=pairs // task.num_devices,
        device=pairs % task.num_devices,
        memory_bytes=torch.zeros(len(pairs), dtype=torch.int64).index_add_(0, pair, shards.device_bytes),
        phases_ms=None,
        rest_ms=None,
        num_devices=task.num_devices,
    )
    costs = None if predictor is None else known_costs(predictor, task, placement)
    if predictor is None or costs is None:
        return shares
    law, loads = costs.law(), torch.from_numpy(costs.loads(shards))
    own = loads.new_zeros(len(pairs), loads.shape[1]).index_add_(0, pair, loads)  # [P, L]
    sums = loads.new_zeros(task.num_devices, loads.shape[1]).index_add_(0, shares.device, own)  # [D, L]
    now_ms = torch.from_numpy(computes_ms(law, sums.numpy()))  # [D, 2]
    without_ms = torch.from_numpy(computes_ms(law, (sums[shares.device] - own).numpy()))
    saved = (now_ms[shares.device] - without_ms).clamp(min=0)  # [P, 2]
    rest_ms = predictor.predict(task, placement).phases_ms().double()
    phases_ms = rest_ms.new_zeros(len(pairs), len(PHASES))
    for phase, weights in ((0, saved[:, 0]), (3, saved[:, 1])):
        phases_ms[:, phase], rest_ms[:, phase] = _divided(rest_ms[:, phase], weights, shares.device)
    kinds_ms = _collectives_ms(law, shards, sums[:, law.width])
    dims, kind = shards.tables.dim.double(), shards.is_any
    weights_of = [
        kind(*ON_ONE_DEVICE) * dims,
        kind("row_wise") * dims,
        kind(*ON_ONE_HOST) * dims,
        kind("data_parallel") * shards.tables.rows * dims,
    ]
    for phase, kinds in ((1, kinds_ms * torch.tensor([[0.5], [0.5], [0.5], [0.0]])), (2, kinds_ms * 0.5)):
        kinds[3] *= 2  # copies are added up on the way back only
        parts = rest_ms[:, phase] * kinds / kinds.sum(dim=0).clamp(min=1e-300)  # [4, D]
        rest_ms[:, phase] -= parts.sum(dim=0)
        for part, weight in zip(parts, weights_of, strict=True):
            mine, left = _divided(part, torch.zeros(len(pairs)).double().index_add_(0, pair, weight), shares.device)
            phases_ms[:, phase] += mine
            rest_ms[:, phase] += left
    return replace(shares, phases_ms=phases_ms, rest_ms=rest_ms)


def _collectives_ms(law: DeviceLaw, shards: Shards, widths: Float[Tensor, " D"]) -> Float[Tensor, "4 D"]:
    """Milliseconds, there and back, of all-to-alls, row-wise tables, tables on one host, and copies."""
    carried = shards.collectives()
    all_to_all = law.fixed_ms + law.own_ms * widths + law.total_ms * float(widths.sum())
    all_to_all += curve_ms(law.curves, ALL_TO_ALL, float(widths.max()))
    others = (
        curve_ms(law.curves, ROWS, float(carried.row_wise_dims)),
        curve_ms(law.curves, HOSTS, float(carried.host_dims.max())),
        curve_ms(law.curves, COPIES, float(carried.all_reduce_bytes)),
    )
    return torch.stack([all_to_all.clamp(min=0), *(torch.full_like(widths, each) for each in others)])


def _divided(
    whole_ms: Float[Tensor, " D"], weights: Float[Tensor, " P"], device: Int[Tensor, " P"]
) -> tuple[Float[Tensor, " P"], Float[Tensor, " D"]]:
    """Each pair's part of its device's milliseconds, by weight; and what is left of a device without weights."""
    total = whole_ms.new_zeros(len(whole_ms)).index_add_(0, device, weights)
    per_weight = torch.where(total > 0, whole_ms / total.clamp(min=1e-300), 0.0)
    return weights * per_weight[device], torch.where(total > 0, 0.0, whole_ms)
