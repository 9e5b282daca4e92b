"""The reasons for a placement's cost: each table's share of it, and its cost elsewhere.

A device runs its tables fused, so its cost is no sum over its tables. Its *saving* without a table is one figure. Tables'
*shares* of a phase are another: they add up to it, if any table has a part in it. Compute is divided by the savings of the
device in that phase without each table, and communication by the columns that each sends.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.costs import PHASES
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.search import SearchingPlacer
from dreamshard.search.costs import changed_ms
from dreamshard.tables import (
    DEFAULT_BATCH,
    ON_EVERY_DEVICE,
    ON_ONE_HOST,
    SPLIT_BY_COLUMNS,
    Placement,
    TableSharding,
    block_shares,
    even_columns,
    most_ranges,
)
from dreamshard.tasks import PlacementTask, Shards, allowed_devices

HOT_SHARE = 0.7
"""Of all lookups, on one of the eight devices of a published row-wise model (AMD-AGI/Primus-DLRM, doc/perf_analysis.md)."""

_OTHER_PLACES = 4  # of the fastest ones, on which each table is tried
_BOUND = ("no other place is open to it alone", "nothing else fits in memory")


@dataclass(frozen=True, kw_only=True)
class DeviceReason:
    """A device's cost, and the tables behind it.

    Attributes:
        phases_ms: by the names of `PHASES`.
        saved_ms: without each of its tables, the largest first; no parts of the total, since some costs are shared.
    """

    device: int
    total_ms: float
    phases_ms: Mapping[str, float]
    memory_bytes: int
    saved_ms: Mapping[str, float]


@dataclass(frozen=True)
class Alternative:
    """A table sharded otherwise, everything else staying as it is, and the cost of the step then."""

    sharding: TableSharding
    overall_ms: float


@dataclass(frozen=True, kw_only=True)
class TableReason:
    """Reasons for a table's place.

    Attributes:
        ms: that its slowest device would save without it.
        next_place: the best other device (or host) for it; None if none is allowed and fits.
        next_type: the best other sharding type for it; None if none is allowed and fits.
        bound: why there is no next place or type, in a few words; empty if either is there.
    """

    table: str
    sharding: TableSharding
    ms: float
    next_place: Alternative | None
    next_type: Alternative | None
    bound: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A placement explained; tables that cost most come first."""

    overall_ms: float
    devices: tuple[DeviceReason, ...]
    tables: tuple[TableReason, ...]


def uneven_ms(task: PlacementTask, placement: Placement, predictor: SearchingPlacer) -> float | None:
    """Cost if tables of unknown distribution, whose rows are spread, had `HOT_SHARE` of their lookups on the first device.

    None without such tables.
    """
    shards, tables, others = Shards.of(task, placement), task.tables, task.num_devices - 1
    known = [None] * len(tables) if tables.block_share is None else tables.block_share
    even = [share is None or bool((share == share[0]).all()) for share in known]
    if not any(even[t] for t in shards.table[shards.num_rows < tables.rows[shards.table]].tolist()):
        return None
    hot = [HOT_SHARE, *[(1 - HOT_SHARE) / others] * others]
    shares = block_shares([hot if even[t] else share for t, share in enumerate(known)])
    return float(predictor.predict(replace(task, tables=replace(tables, block_share=shares)), placement).overall_ms())


def explain(task: PlacementTask, placement: Placement, predictor: SearchingPlacer) -> Explanation:
    """The reasons for each device's cost, and the cost of each table's next best place and sharding type.

    A ValueError says that the predictor has no costs of such shards.
    """
    model, names, shards = predictor.costs_on(task, placement), task.tables.names, Shards.of(task, placement)
    costs, used, allowed = predictor.predict(task, placement), shards.memory_bytes(), allowed_devices(task)
    without_ms, _ = changed_ms(model, placement, [(t, None) for t in range(len(names))])  # [T, D]
    others = [
        (t, new)
        for t in range(len(names))
        for new in _others(task, placement, t, without_ms[t], allowed[t])
        if not new.is_too_wide(int(task.tables.dim[t]))
    ]
    same = (0, placement.tables[0])  # for the costs now in the same precision
    after_ms, fits = changed_ms(model, placement, [same, *others])  # [N, D]
    extra_ms = after_ms[1:].amax(dim=1) - after_ms[0].max()
    overall_ms, best = float(costs.overall_ms()), dict[tuple[int, bool], Alternative]()  # by table; True: elsewhere
    for n in extra_ms.argsort(stable=True).tolist():
        t, sharding = others[n]
        if fits[1 + n]:
            key = t, sharding.sharding_type == placement.tables[t].sharding_type
            best.setdefault(key, Alternative(sharding, overall_ms + float(extra_ms[n])))
    saving_ms = (after_ms[0] - without_ms)[shards.table, shards.device]  # [S]
    saved_ms: list[dict[str, float]] = [{} for _ in range(task.num_devices)]  # of each device, by its tables
    for s in saving_ms.argsort(descending=True, stable=True).tolist():
        saved_ms[shards.device[s]][names[shards.table[s]]] = float(saving_ms[s])
    devices = tuple(
        DeviceReason(
            device=d,
            total_ms=float(phases_ms.sum()),
            phases_ms=dict(zip(PHASES, phases_ms.tolist(), strict=True)),
            memory_bytes=int(used[d]),
            saved_ms=saved_ms[d],
        )
        for d, phases_ms in enumerate(costs.phases_ms)
    )
    tried = {t for t, _ in others}
    tables = [
        TableReason(
            table=name,
            sharding=placement.tables[t],
            ms=max(by_table[name] for by_table in saved_ms if name in by_table),
            next_place=best.get((t, True)),
            next_type=best.get((t, False)),
            bound="" if {(t, True), (t, False)} & best.keys() else _BOUND[t in tried],
        )
        for t, name in enumerate(names)
    ]
    return Explanation(overall_ms=overall_ms, devices=devices, tables=tuple(sorted(tables, key=lambda row: -row.ms)))


def _others(
    task: PlacementTask, placement: Placement, table: int, without_ms: Float[Tensor, " D"], allowed: Bool[Tensor, " D"]
) -> Iterator[TableSharding]:
    """Other places of a table on the devices that are fastest without it, and other types; none if tied to others."""
    constraints, name = task.constraints, task.tables.names[table]
    if any(name in group for group in (*constraints.together, *constraints.apart)):
        return
    now, dim, order = placement.tables[table], int(task.tables.dim[table]), without_ms.argsort(stable=True).tolist()
    types = constraints.sharding_types_for(name) if now.cached_share is None else ()
    for kind in dict.fromkeys((now.sharding_type, *types)):
        if kind in ON_ONE_HOST and kind != now.sharding_type and placement.num_hosts == 1:  # as row-wise
            continue
        size = placement.devices_per_host if kind in ON_ONE_HOST else 1
        everywhere = [] if task.num_devices % size else list(dict.fromkeys(d // size for d in order))
        places = [place for place in everywhere if allowed[place * size : (place + 1) * size].all()]
        if kind == now.sharding_type:
            slowest = max(now.where, key=everywhere.index, default=None)
            for new in [place for place in places if place not in now.where][: _OTHER_PLACES * bool(now.where)]:
                yield replace(now, where=tuple(new if place == slowest else place for place in now.where))
            continue
        narrowest = constraints.narrowest_columns_of.get(name, 0)
        columns = even_columns(dim, int(min(2, most_ranges(dim, narrowest)))) if kind in SPLIT_BY_COLUMNS else ()
        count = len(order) if kind in ON_EVERY_DEVICE else max(len(columns), 1)
        if len(places) >= count and len(columns) != 1:
            yield TableSharding(kind, columns, () if kind in ON_EVERY_DEVICE else tuple(places[:count]))


@dataclass(frozen=True, kw_only=True)
class TableShares:
    """Each table on each device that holds some of it: `P` such pairs, by table and then by device.

    Attributes:
        table: `[P]` number of the task's table; `device` `[P]`.
        memory_bytes: `[P]` of device memory.
        phases_ms: `[P, 4]` share of each phase; 0 if no costs are known.
        rest_ms: `[D, 4]` of each device, in which no table has a part; 0 if no costs are known.
    """

    table: Int[Tensor, " P"]
    device: Int[Tensor, " P"]
    memory_bytes: Int[Tensor, " P"]
    phases_ms: Float[Tensor, "P 4"]
    rest_ms: Float[Tensor, "D 4"]


@torch.no_grad()
def table_shares(task: PlacementTask, placement: Placement, predictor: SearchingPlacer | None) -> TableShares:
    """Divide the predicted cost of each device, if known, and its memory, among its tables."""
    shards = Shards.of(task, placement)
    pairs, pair = torch.unique(shards.table * task.num_devices + shards.device, return_inverse=True)
    table, device = pairs // task.num_devices, pairs % task.num_devices

    def by_pair(values: Tensor) -> Tensor:
        return values.new_zeros(len(pairs), *values.shape[1:]).index_add_(0, pair, values)

    device_ms, weights = torch.zeros(task.num_devices, len(PHASES)), torch.zeros(len(pairs), len(PHASES))
    loads = None
    if predictor is not None:
        model = predictor.costs_on(task, placement)
        with suppress(ValueError):  # if it has no costs of such shards
            loads = torch.from_numpy(model.loads(shards))  # [S, L]
    if loads is not None:
        sums = shards.per_device(loads)  # [D, L]
        device_ms = model.phases_ms(sums[None].numpy())[0].double()
        weights = device_ms[device] - model.phases_ms((sums[device] - by_pair(loads))[:, None].numpy())[:, 0]
        carried = shards.traffic.double()  # [S, 4]
        sent = carried[:, [0, 1, 3]].sum(dim=1)
        # an all-reduce sends twice; it is of gradients, so in the backward pass
        reduced = 2 * carried[:, 2] / (VECTOR_BYTES * (task.batch_size or DEFAULT_BATCH))
        weights[:, 1:3] = by_pair(torch.stack([sent, sent + reduced], dim=1))
    weights = weights.clamp(min=0)
    total = torch.zeros_like(device_ms).index_add_(0, device, weights)  # [D, 4]
    return TableShares(
        table=table,
        device=device,
        memory_bytes=by_pair(shards.device_bytes),
        phases_ms=weights / total.clamp(min=1e-300)[device] * device_ms[device],
        rest_ms=device_ms * (total == 0),
    )
