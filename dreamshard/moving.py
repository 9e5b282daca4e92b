"""From the current plan to a new one: the steps between them, and the placement whose gain is worth its moves.

A part of a table that stays on its device moves nothing, however it is split there. A table with copies is read from one of
them, or from none if the device that needs it has a copy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.constraints import ANY_SHARDING
from dreamshard.files import first_line, shown
from dreamshard.plan import Plan
from dreamshard.search import SearchingPlacer
from dreamshard.search.annealing import ON_ALL, ON_HOST, Found, anneal, found, state_of
from dreamshard.search.options import ShardingOptions
from dreamshard.search.search import default_moves
from dreamshard.tables import ON_EVERY_DEVICE, ON_ONE_DEVICE, ON_ONE_HOST, Placement, ShardingType, TableSharding
from dreamshard.tasks import PlacementTask, Shards, allowed_devices, sharding_violations, violation

Range = tuple[int, int]
"""First and last (exclusive) row or column."""

_PRICES = (*(2.0**k for k in range(6, -7, -1)), 0.0, 1.0)  # of a byte moved, relative to the price that is given


@dataclass(frozen=True, kw_only=True)
class Current:
    """The current plan as a placement of today's tables, as far as it has them.

    Attributes:
        task: of the tables that are there already, which may be sharded in any way.
        placement: of these tables.
        shards: of these tables, by today's numbers.
        sharding_of: the same tables by today's numbers.
        new: tables that only the task has.
        changed: tables of another size in the current plan, which are loaded again.
        removed: tables that only the current plan has.
    """

    task: PlacementTask
    placement: Placement
    shards: Shards
    sharding_of: Mapping[int, TableSharding]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, task: PlacementTask) -> "Current":
        """The tables of a task as `plan` holds them; a ValueError says that it has none of them in their sizes."""
        names, sizes = task.tables.names, task.tables.sizes
        planned = {t: plan.tables[name] for t, name in enumerate(names) if name in plan.tables}
        same = {t: table.sharding for t, table in planned.items() if (table.rows, table.dim) == sizes[t][1:]}
        if not same:
            raise ValueError("the current plan places none of these tables in their sizes; give the plan of this model")
        today = replace(
            task,
            num_devices=plan.num_devices,
            memory_bytes=2**62,
            constraints=replace(ANY_SHARDING, caching=True),
            devices_per_host=plan.devices_per_host or task.devices_per_host,
        )
        placement = plan.placed(same.values())
        return cls(
            task=replace(today, tables=today.tables.select([*same])),
            placement=placement,
            shards=Shards.of_tables(today, same.items(), placement.devices_per_host)[0],
            sharding_of=same,
            new=tuple(name for t, name in enumerate(names) if t not in planned),
            changed=tuple(names[t] for t in planned if t not in same),
            removed=tuple(sorted(plan.tables.keys() - set(names))),
        )

    def __str__(self) -> str:
        """The tables that the plan does not fit, for people; empty if it fits all."""
        named = {"new": self.new, "resized": self.changed, "removed": self.removed}
        return "; ".join(f"{how}: {shown(names)}" for how, names in named.items() if names)


@dataclass(frozen=True)
class Step:
    """A part of a table that a device gets from another one, or loads if the table is new or of another size: None."""

    table: str
    rows: Range
    columns: Range
    source: int | None
    target: int
    memory_bytes: int


class _Overlaps(NamedTuple):
    """Parts of tables that two sets of shards have in common, `P` of them: shards `new[p]` and `old[p]`."""

    new: Int[Tensor, " P"]
    old: Int[Tensor, " P"]
    rows: Int[Tensor, "P 2"]
    columns: Int[Tensor, "P 2"]
    num_bytes: Int[Tensor, " P"]


def _overlaps(new: Shards, old: Shards) -> _Overlaps:
    """Overlaps of the shards of `new` with those of `old`, which are ordered by table."""
    first = torch.searchsorted(old.table, new.table)
    counts = torch.searchsorted(old.table, new.table, right=True) - first
    i = torch.repeat_interleave(counts)
    j = torch.arange(len(i)) - (counts.cumsum(0) - counts - first)[i]
    rows, columns = (
        torch.stack([torch.maximum(one[i, 0], other[j, 0]), torch.minimum(one[i, 1], other[j, 1])], dim=1)
        for one, other in ((new.rows, old.rows), (new.columns, old.columns))
    )
    sizes = [torch.diff(ends)[:, 0] for ends in (rows, columns)]
    some = (sizes[0] > 0) & (sizes[1] > 0)
    return _Overlaps(*(column[some] for column in (i, j, rows, columns, new.task.bytes_of(new.table[i], *sizes))))


def steps(task: PlacementTask, before: Shards, placement: Placement) -> tuple[Step, ...]:
    """Parts of tables that move from `before`, `Current.shards`, then tables that are loaded, the largest first."""
    after, names = Shards.of(task, placement), task.tables.names
    pairs = _overlaps(after, before)
    source, target = before.device[pairs.old], after.device[pairs.new]
    # of copies, which every device of the current plan has, one is read
    moves = (source != target) & (~before.is_any("data_parallel")[pairs.old] | (source == target % before.num_devices))
    loads = ~torch.isin(after.table, before.table)
    moved = after.table[pairs.new], pairs.rows, pairs.columns, source, target, pairs.num_bytes
    unheld = torch.full_like(after.table, -1)
    loaded = after.table, after.rows, after.columns, unheld, after.device, after.stored_bytes
    return tuple(
        Step(names[t], tuple(rows), tuple(columns), None if held < 0 else held, device, size)
        for parts, kept in ((moved, moves), (loaded, loads))
        for t, rows, columns, held, device, size in sorted(
            zip(*(column[kept].tolist() for column in parts), strict=True), key=lambda part: -part[-1]
        )
    )


def moved_bytes(steps: Iterable[Step]) -> int:
    """Bytes that move between devices."""
    return sum(step.memory_bytes for step in steps if step.source is not None)


def rename_devices(task: PlacementTask, placement: Placement, before: Shards) -> Placement:
    """The placement with the names of devices and hosts that keep the most bytes where they are.

    Devices with as much memory that may hold the same tables are alike. If tables are spread over a host, its devices stay
    together: first the best names are found for each pair of hosts, then for hosts. Spread tables stay where they are, so
    devices with a smaller block of a table may cost more. `before` are shards of the current plan.
    """
    num_devices, spread = placement.num_devices, placement.sharding_types & set(ON_ONE_HOST)
    per_host, after = placement.devices_per_host if spread else num_devices, Shards.of(task, placement)
    overlaps, hosts = _overlaps(after, before), num_devices // per_host
    by_host_and_device = hosts, per_host, hosts, per_host

    def kept_bytes(kinds: Sequence[ShardingType]) -> Float[np.ndarray, "H N H N"]:
        """Bytes of these shards that stay if a device is called another."""
        held = after.is_any(*kinds)[overlaps.new] & (before.device[overlaps.old] < num_devices)
        pairs = after.device[overlaps.new] * num_devices + before.device[overlaps.old]
        kept = torch.bincount(pairs[held], overlaps.num_bytes[held], num_devices**2).double()
        return kept.reshape(by_host_and_device).numpy()

    by_device, by_host = kept_bytes(ON_ONE_DEVICE), np.einsum("ipjp->ij", kept_bytes(ON_ONE_HOST))
    limits = torch.cat([allowed_devices(task).long(), task.capacity_bytes[None]])  # [T + 1, D]
    kind = torch.unique(limits, dim=1, return_inverse=True)[1].numpy()  # [D]
    differs = (kind[:, None] != kind).reshape(by_host_and_device)
    by_device[differs] = -1 - by_device.sum() - by_host.sum()  # less than any names can gain
    within = np.zeros((hosts, hosts, per_host), np.int64)
    for one, other in np.ndindex(hosts, hosts):
        chosen = scipy.optimize.linear_sum_assignment(by_device[one, :, other], maximize=True)
        within[one, other] = other * per_host + chosen[1]
        by_host[one, other] += by_device[one, :, other][chosen].sum()
    host = scipy.optimize.linear_sum_assignment(by_host, maximize=True)[1].tolist()
    device = within[range(hosts), host].ravel().tolist()

    def renamed(sharding: TableSharding) -> TableSharding:
        names = host if sharding.sharding_type in ON_ONE_HOST else device
        return replace(sharding, where=tuple(names[place] for place in sharding.where))

    result = replace(placement, tables=tuple(map(renamed, placement.tables)))
    return placement if violation(task, result) else result  # a block of rows may be smaller, so free memory may differ


@dataclass(frozen=True)
class Point:
    """A legal placement on the way, the predicted cost of a step, and the bytes that move from the current plan."""

    placement: Placement
    overall_ms: float
    moved_bytes: int


@dataclass(frozen=True, kw_only=True)
class MovePrice:
    """The cost of a byte that moves, against milliseconds of every step.

    Attributes:
        steps_until_next: training steps until tables are moved again, so how often a gain is had.
        bytes_per_s: moved by all devices together, while no step runs.
    """

    steps_until_next: int | float
    bytes_per_s: int | float

    def move_ms(self, moved_bytes: int) -> float:
        """Milliseconds for which training stops."""
        return 1e3 * moved_bytes / self.bytes_per_s

    def total_ms(self, point: Point) -> float:
        """Milliseconds of all steps and of moving."""
        return point.overall_ms * self.steps_until_next + self.move_ms(point.moved_bytes)


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What to do about the current plan.

    Attributes:
        chosen: of the least cost, moves included.
        kept: the current plan, with new tables where the new placement has them; None if it cannot be kept.
        why_not_kept: the reason; empty if it can be kept.
        moved_all: the new placement, its devices named so that little moves.
        curve: the cheapest placements by the bytes that they move, rising; the cost falls from point to point.
    """

    chosen: Point
    kept: Point | None
    why_not_kept: str
    moved_all: Point
    curve: tuple[Point, ...]


def weigh(
    task: PlacementTask, current: Current, target: Placement, predictor: SearchingPlacer, price: MovePrice
) -> Weighed:
    """Weigh the milliseconds that `target`, a legal placement, saves against the bytes that it moves.

    Tables are sharded as in the current plan or `target`, on any devices; never worse than keeping or moving everything.
    """
    before = current.shards

    def point(placement: Placement) -> Point:
        overall_ms = float(predictor.predict(task, placement).overall_ms())
        return Point(placement, overall_ms, moved_bytes(steps(task, before, placement)))

    moved_all = min(map(point, (rename_devices(task, target, before), target)), key=price.total_ms)
    target, points, why_not, kept = moved_all.placement, [moved_all], "", None
    held = current.placement.on_hosts_of(target.devices_per_host)
    if held.num_devices != target.num_devices:
        why_not = f"it is for {held.num_devices} devices"
    elif held.devices_per_host != target.devices_per_host:
        why_not = f"it spreads rows over hosts of {held.devices_per_host} devices"
    else:
        start = replace(target, tables=tuple(current.sharding_of.get(t, new) for t, new in enumerate(target.tables)))
        try:
            kept = point(start)
        except ValueError as error:  # such as tables in host memory, whose cost no trained network knows
            why_not = f"its cost is not known: {first_line(error)}"
        else:
            why_not = violation(task, start)
            between = _between(task, before, start, target, predictor, price)
            points += [new for new in (kept, *map(point, between)) if not violation(task, new.placement)]
            points.append(point(rename_devices(task, min(points, key=price.total_ms).placement, before)))
    curve: list[Point] = []
    for candidate in sorted(points, key=lambda point: (point.moved_bytes, point.overall_ms)):
        if not curve or candidate.overall_ms < curve[-1].overall_ms:
            curve.append(candidate)
    kept, chosen = None if why_not else kept, min(points, key=price.total_ms)
    return Weighed(chosen=chosen, kept=kept, why_not_kept=why_not, moved_all=moved_all, curve=tuple(curve))


def _between(
    task: PlacementTask,
    before: Shards,
    start: Placement,
    target: Placement,
    predictor: SearchingPlacer,
    price: MovePrice,
) -> list[Placement]:
    """The best placements found at each of several prices.

    Every table is sharded as at either end, if it may be; each search starts from the best legal placement so far.
    """
    apart, anywhere = frozenset().union(*task.constraints.apart), allowed_devices(task).all(dim=1).tolist()
    tables = []
    for (name, _, dim), old, new, is_free in zip(task.tables.sizes, start.tables, target.tables, anywhere, strict=True):
        kind = old.sharding_type
        # the search does not look where tables on all devices are, nor what is apart from spread ones
        is_out = (kind in ON_EVERY_DEVICE and not is_free) or (kind not in ON_ONE_DEVICE and name in apart)
        tables.append(new if is_out or any(sharding_violations(task.constraints, name, old, dim)) else old)
    try:
        model = predictor.costs_on(task, target)
        options, choices = ShardingOptions.given(task, model, [replace(start, tables=tuple(tables)), target])
    except ValueError:  # of the paper's network, which does not tell collectives apart
        return []
    step_ms = price.move_ms(1) / price.steps_until_next * _bytes_of_places(options, before)  # of a step
    legal = [choice for choice in choices if not violation(task, options.placement(Found(*choice, 0.0), joined=False))]
    for seed, relative in enumerate(_PRICES):
        menu = options.menu._replace(price_ms=relative * step_ms)
        starts = [found(state_of(menu, *choice)) for choice in legal]
        best = anneal(menu, min(starts, key=lambda start: start.cost_ms), default_moves(task), seed)
        legal.append((best.option, best.place))
    placements = [options.placement(Found(*choice, 0.0), joined=False) for choice in legal]
    return list(dict.fromkeys(replace(placement, devices_per_host=target.devices_per_host) for placement in placements))


def _bytes_of_places(options: ShardingOptions, before: Shards) -> Float[np.ndarray, "R D"]:
    """Bytes that move if a range of columns is on each device, or host, or on all devices (column 0)."""
    menu, (shards, of_range) = options.menu, options.shards()
    overlaps = _overlaps(shards, before)
    moves = ~before.is_any("data_parallel")[overlaps.old]  # every device has its own of these
    new, old, num_bytes = (column[moves].numpy() for column in (overlaps.new, overlaps.old, overlaps.num_bytes))
    of_shard, block, device = of_range[new], shards.device.numpy()[new], before.device.numpy()[old]
    devices_of = np.ones(ON_HOST + 1, np.int64)  # of a place, by how its option is spread
    devices_of[[ON_ALL, ON_HOST]] = before.num_devices, menu.per_host
    size = devices_of[menu.scope.repeat(np.diff(menu.first_range))[of_shard]]
    result = np.zeros((len(menu.load), menu.allowed.shape[1]))
    np.add.at(result, of_shard, num_bytes[:, None])
    stays = device % size == block
    np.subtract.at(result, (of_shard[stays], (device // size)[stays]), num_bytes[stays])
    return result
