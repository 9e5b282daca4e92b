"""Why a placement costs what it costs: what makes each device slow, and what each table would cost elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamshard.costs import PHASES
from dreamshard.legality import allowed_devices
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    Placement,
    ShardingType,
    TableSharding,
    even_columns,
    most_ranges,
)
from dreamshard.summed_costs import Change, ShardedPredictor, SummedCosts
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
        extra_ms: more than now; below zero where it would be better.
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
        next_place: the best other device (or host) for it; None where it has none that is allowed and has room.
        next_way: the best other way to shard it; None where none is allowed and has room.
        bound: why there is no next place or way, in a few words; empty where both are there.
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


def explain(task: PlacementTask, placement: Placement, predictor: ShardedPredictor) -> Explanation:
    """What makes each device cost what it costs, and what the next best place and way to shard of each table would cost.

    Args:
        task: whose tables are placed.
        placement: of the task's tables.
        predictor: of costs.

    Raises:
        ValueError: the predictor has no costs of such shards.
    """
    summed = SummedCosts.of(predictor, task, [placement])
    if summed is None:
        raise ValueError(
            f"the placement shards tables {', '.join(sorted(placement.sharding_types))}, and only a preset's costs are known "
            "shard by shard for all of these; explain it with --hardware and --placer prior"
        )
    sums = summed.sums(placement)
    costs = summed.costs_of(sums)
    phases, device_ms = costs.phases_ms(), costs.device_ms()  # [D, 4], [D]
    removals = [[Change(t, sharding, None)] for t, sharding in enumerate(placement.tables)]
    saved = device_ms - summed.costs_after(sums, removals)[0].device_ms()  # [T, D]
    held = _held(placement)
    devices = tuple(
        DeviceReason(
            device=d,
            total_ms=float(device_ms[d]),
            phases_ms=dict(zip(PHASES, phases[d].tolist(), strict=True)),
            memory_bytes=int(sums.used_bytes[d]),
            contributions=_contributions(task, saved[:, d], held[:, d]),
        )
        for d in range(task.num_devices)
    )
    allowed = allowed_devices(task)
    options = [_options(task, placement, t, device_ms - saved[t], allowed[t]) for t in range(len(task.tables))]
    if not summed.costs.every_way:
        options = [[each for each in others if each.sharding_type in ON_ONE_DEVICE] for others in options]
    flat = [(t, other) for t, others in enumerate(options) for other in others]
    changes = [[Change(t, placement.tables[t], other)] for t, other in flat]
    overall: dict[int, list[tuple[TableSharding, float]]] = {t: [] for t in range(len(options))}
    if changes:
        after, used = summed.costs_after(sums, changes)
        fits = (used <= task.capacity_bytes).all(dim=1).tolist()
        for (t, other), ms, has_room in zip(flat, after.overall_ms().tolist(), fits, strict=True):
            if has_room:
                overall[t].append((other, ms))
    now_ms = float(device_ms.max())
    slowest = torch.where(held, saved, -torch.inf).max(dim=1).values  # [T]
    tables = [
        _table_reason(task, placement.tables[t], t, float(slowest[t]), now_ms, overall[t], bool(options[t]))
        for t in range(len(task.tables))
    ]
    return Explanation(overall_ms=now_ms, devices=devices, tables=tuple(sorted(tables, key=lambda reason: -reason.ms)))


def _held(placement: Placement) -> Bool[Tensor, "T D"]:
    """Whether a device holds shards of a table."""
    held = torch.zeros(len(placement.tables), placement.num_devices, dtype=torch.bool)
    for t, sharding in enumerate(placement.tables):
        for place in sharding.where:
            size = placement.devices_per_host if sharding.sharding_type in ON_ONE_HOST else 1
            held[t, place * size : (place + 1) * size] = True
        if not sharding.where:
            held[t] = True
    return held


def _contributions(
    task: PlacementTask, saved: Float[Tensor, " T"], held: Bool[Tensor, " T"]
) -> tuple[Contribution, ...]:
    tables = held.nonzero().flatten().tolist()
    found = [Contribution(task.tables.names[t], float(saved[t])) for t in tables]
    return tuple(sorted(found, key=lambda each: -each.ms))


def _options(
    task: PlacementTask,
    placement: Placement,
    table: int,
    without_ms: Float[Tensor, " D"],
    allowed: Bool[Tensor, " D"],
) -> list[TableSharding]:
    """Other places of a table on the devices that are fastest without it, and other ways to shard it."""
    sharding, name = placement.tables[table], parent_name(task.tables.names[table])
    constraints = task.constraints
    if any(name in group for group in (*constraints.together, *constraints.apart)):
        return []  # it does not move alone
    order = [d for d in torch.argsort(without_ms, stable=True).tolist() if bool(allowed[d])]
    options: list[TableSharding] = []
    if sharding.sharding_type in ON_ONE_DEVICE:
        slowest = max(sharding.where, key=lambda device: float(without_ms[device]))
        others = [d for d in order if d not in sharding.where][:_OTHER_DEVICES]
        options += [_moved(sharding, slowest, d) for d in others]
    elif sharding.sharding_type in ON_ONE_HOST:
        hosts = [h for h in _allowed_hosts(placement, allowed) if h not in sharding.where]
        options += [_moved(sharding, old, h) for h in hosts for old in dict.fromkeys(sharding.where)]
    types = [each for each in constraints.sharding_types_for(name) if each != sharding.sharding_type]
    if sharding.cached_share is None:
        dim = int(task.tables.dim[table])
        most = most_ranges(dim, constraints.narrowest_columns_of.get(name, 0))
        options += [other for each in types for other in _other_way(placement, each, dim, order, most)]
    return [option for option in options if option.sharding_type not in ON_EVERY_DEVICE or bool(allowed.all())]


def _moved(sharding: TableSharding, old: int, new: int) -> TableSharding:
    """With the ranges of columns of one place at another one instead."""
    return replace(sharding, where=tuple(new if each == old else each for each in sharding.where))


def _allowed_hosts(placement: Placement, allowed: Bool[Tensor, " D"]) -> list[int]:
    """Hosts of which a table may use every device; none where they differ in size."""
    per_host = placement.devices_per_host
    if placement.num_devices % per_host:
        return []
    return [h for h in range(placement.num_hosts) if bool(allowed[h * per_host : (h + 1) * per_host].all())]


def _other_way(
    placement: Placement,
    sharding_type: ShardingType,
    dim: int,
    order: Sequence[int],
    most: int,
) -> list[TableSharding]:
    """A table sharded in one other way, on the fastest devices; into at most so many ranges of columns."""
    per_host = placement.devices_per_host
    able = torch.zeros(placement.num_devices, dtype=torch.bool)
    able[list(order)] = True
    fastest = {device // per_host: None for device in order}  # in order
    hosts = [h for h in fastest if h in _allowed_hosts(placement, able)]
    if sharding_type == "table_wise":
        return [TableSharding(sharding_type, where=(order[0],))]
    if sharding_type == "column_wise":
        parts = min(2, most, len(order))
        columns = even_columns(dim, parts)
        return [TableSharding(sharding_type, columns=columns, where=tuple(order[:parts]))] if parts > 1 else []
    if sharding_type in ("row_wise", "data_parallel"):
        return [TableSharding(sharding_type)]
    if sharding_type == "table_row_wise" and hosts and placement.num_hosts > 1:  # on one host it is row-wise
        return [TableSharding(sharding_type, where=(hosts[0],))]
    return []


def _table_reason(
    task: PlacementTask,
    sharding: TableSharding,
    table: int,
    ms: float,
    now_ms: float,
    overall: Sequence[tuple[TableSharding, float]],
    tried: bool,
) -> TableReason:
    def best(same_way: bool) -> Alternative | None:
        found = [each for each in overall if (each[0].sharding_type == sharding.sharding_type) == same_way]
        if not found:
            return None
        other, overall_ms = min(found, key=lambda each: each[1])
        return Alternative(
            sharding_type=other.sharding_type, where=other.where, overall_ms=overall_ms, extra_ms=overall_ms - now_ms
        )

    next_place, next_way = best(True), best(False)
    bound = ""
    if next_place is None and next_way is None:
        bound = "nothing else has room" if tried else "its constraints leave nothing else"
    return TableReason(
        table=task.tables.names[table],
        sharding_type=sharding.sharding_type,
        where=sharding.where,
        cached_share=sharding.cached_share,
        ms=ms,
        next_place=next_place,
        next_way=next_way,
        bound=bound,
    )
