"""From the plan in use to a new one: the steps between them, and the placement whose gain is worth its moves.

A part of a table that stays on its device moves nothing, however it is split there. A table that several devices hold
copies of is read from one of them, or from none if the device that needs it has a copy.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.files.text import first_line
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, Placement, TableSharding, row_blocks
from dreamshard.plan import Plan
from dreamshard.search.annealing import ON_ALL, ON_DEVICES, ON_HOST, Found, anneal, priced
from dreamshard.search.costs import Predictor, known_costs
from dreamshard.search.options import ShardingOptions
from dreamshard.search.search import default_moves
from dreamshard.shards import Shards, allowed_devices, violation
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

Range = tuple[int, int]
"""First and last (exclusive) row or column."""

_EQUAL_BLOCKS = 0.01  # of a block: the last one of a large table is often a few rows smaller
_PRICES = (*(2.0**k for k in range(6, -7, -1)), 0.0)  # of a byte moved, of the gain per byte of moving everything
_LEAST_GAIN = 1e-3  # of a step: assumed if the new placement gains less


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The plan in use as a placement of today's tables, as far as it has them.

    Attributes:
        today: today's tables on the devices of the plan in use, without constraints.
        number: `[T']` numbers of the tables among them that are there already, as they are.
        placement: of these tables.
        new: tables that the plan in use does not have.
        changed: tables that have other rows or columns in it, and are loaded again.
        removed: tables that only the plan in use has.
    """

    today: PlacementTask
    number: Int[Tensor, " T"]
    placement: Placement
    new: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, task: PlacementTask) -> "InUse":
        """The tables of a task as `plan` holds them.

        Raises:
            ValueError: the plan has none of the tables.
        """
        new, changed, same = [], [], []
        sizes = zip(task.tables.names, task.tables.rows.tolist(), task.tables.dim.tolist(), strict=True)
        for t, (name, rows, dim) in enumerate(sizes):
            own = plan.tables.get(name)
            if own is None:
                new.append(name)
            elif (own.rows, own.dim) == (rows, dim):
                same.append(t)
            else:
                changed.append(name)
        if len(new) == len(task.tables):
            raise ValueError("the plan in use places none of these tables; give the plan of this model")
        if not same:
            raise ValueError(
                f"the plan in use has other sizes of all tables that it shares with these ({', '.join(changed[:5])}); place "
                "them without it"
            )
        today = replace(
            task,
            num_devices=plan.num_devices,
            memory_bytes=2**62,
            constraints=UNCONSTRAINED,
            devices_per_host=plan.devices_per_host or task.devices_per_host,
        )
        return cls(
            today=today,
            number=torch.tensor(same),
            placement=plan.placement(task.tables.select(same)),
            new=tuple(new),
            changed=tuple(changed),
            removed=tuple(sorted(plan.tables.keys() - set(task.tables.names))),
        )

    @property
    def task(self) -> PlacementTask:
        """Of the tables that are there already."""
        return replace(self.today, tables=self.today.tables.select(self.number))

    @property
    def shards(self) -> Shards:
        """Its shards, by today's numbers of their tables."""
        shardings = zip(self.number.tolist(), self.placement.tables, strict=True)
        return Shards.of_tables(self.today, shardings, self.placement.devices_per_host)[0]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Tables that are loaded rather than moved."""
        return self.new + self.changed


Kind = Literal["move", "cut", "load"]


@dataclass(frozen=True)
class Step:
    """A part of a table that a device gets.

    Attributes:
        kind: `move` it from another device; `cut` it, that is re-split it, on its device; `load` a table that is new or of
            another size.
        source: device; None if it is loaded.
    """

    kind: Kind
    table: str
    rows: Range
    columns: Range
    source: int | None
    target: int
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """For a plan."""
        fields = asdict(self)
        (row_start, row_end), (column_start, column_end) = fields.pop("rows"), fields.pop("columns")
        ends = {"row_start": row_start, "row_end": row_end, "column_start": column_start, "column_end": column_end}
        return fields | ends


class _Overlaps(NamedTuple):
    """Parts of tables that two sets of shards have in common, `P` of them: of shard `new[p]` and shard `old[p]`."""

    new: Int[Tensor, " P"]
    old: Int[Tensor, " P"]
    rows: Int[Tensor, "P 2"]
    columns: Int[Tensor, "P 2"]
    num_bytes: Int[Tensor, " P"]


def _overlaps(task: PlacementTask, new: Shards, old: Shards) -> _Overlaps:
    """Overlaps of the shards of `new` with those of `old`, which are ordered by table."""
    counts = torch.bincount(old.table, minlength=len(task.tables))  # [T]
    repeats = counts[new.table]
    i = torch.arange(len(new.table)).repeat_interleave(repeats)
    j = (counts.cumsum(0) - counts)[new.table[i]] + torch.arange(len(i))
    j -= (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
    rows, columns = (
        torch.stack([torch.maximum(one[i, 0], other[j, 0]), torch.minimum(one[i, 1], other[j, 1])], dim=1)
        for one, other in ((new.rows, old.rows), (new.columns, old.columns))
    )
    some = (rows[:, 0] < rows[:, 1]) & (columns[:, 0] < columns[:, 1])
    i, j, rows, columns = i[some], j[some], rows[some], columns[some]
    return _Overlaps(i, j, rows, columns, task.stored_bytes(new.table[i], rows, columns))


def steps(task: PlacementTask, before: Shards, placement: Placement) -> tuple[Step, ...]:
    """Changes by table: moves first, then parts that are re-split, then parts that are loaded, the largest first.

    Tables that are only in `before` are dropped, which is no step.

    Args:
        task: of today's tables.
        before: shards in use, `InUse.shards`.
        placement: new.
    """
    after = Shards.of(task, placement)
    found, tables = _sources(task, before, after), after.table.tolist()
    known = torch.zeros(len(task.tables), dtype=torch.bool)
    known[before.table] = True
    loaded = (~known[after.table]).nonzero().flatten()
    all_bytes = task.stored_bytes(after.table, after.rows, after.columns)
    parts = [*zip(*(each.tolist() for each in found), strict=True)]
    parts += [(i, None, after.rows[i].tolist(), after.columns[i].tolist(), int(all_bytes[i])) for i in loaded.tolist()]
    result = []
    for i, j, rows, columns, num_bytes in parts:
        source, target = None if j is None else int(before.device[j]), int(after.device[i])
        kind: Kind = "load" if source is None else ("cut" if source == target else "move")
        name = task.tables.names[tables[i]]
        result.append(Step(kind, name, tuple(rows), tuple(columns), source, target, num_bytes))
    return tuple(sorted(result, key=lambda step: (get_args(Kind).index(step.kind), -step.memory_bytes)))


def moved_bytes(task: PlacementTask, before: Shards, placement: Placement) -> int:
    """Bytes of all moves; arguments as for `steps`."""
    after = Shards.of(task, placement)
    found = _sources(task, before, after)
    return int(found.num_bytes[before.device[found.old] != after.device[found.new]].sum())


def _sources(task: PlacementTask, before: Shards, after: Shards) -> _Overlaps:
    """The parts that each shard that changes is put together from."""
    found = _overlaps(task, after, before)
    new, old = found.new, found.old
    here = before.device[old] == after.device[new]
    is_same = here & (before.device_bytes[old] == after.device_bytes[new])
    for one, other in ((before.rows[old], after.rows[new]), (before.columns[old], after.columns[new])):
        is_same &= (one == other).all(dim=1)
    one_copy = before.device[old] == after.device[new] % before.num_devices  # every device has a copy
    chosen = (one_copy | ~before.is_any("data_parallel")[old]) & ~torch.isin(new, new[is_same])
    return _Overlaps(*(each[chosen] for each in found))


def rename_devices(task: PlacementTask, placement: Placement, before: Shards) -> Placement:
    """The placement with the names of devices and hosts that keep the most bytes where they are.

    Devices of one host are alike, and so are hosts of the same size, which is all that a step's cost depends on. A device
    only gets the name of one that has as much room, may hold the same tables by the constraints, and holds blocks as large
    of tables spread by rows, which stay where they are. Both choices are assignment problems: of devices to devices for
    each pair of hosts, then of hosts to hosts.

    Args:
        task: whose constraints may name devices.
        placement: of the task's tables, legal.
        before: shards in use.

    Returns:
        A legal placement of the same cost, except for blocks of rows that differ by less than a hundredth.
    """
    per_host, num_devices, num_hosts = placement.devices_per_host, placement.num_devices, placement.num_hosts
    by_device, by_host = _kept_bytes(task, placement, before)
    forbidden = -2.0 * (1 + by_device.sum() + by_host.sum())  # less than any allowed choice is worth
    by_device = np.where(_alike(task, placement), by_device, forbidden * num_devices)
    members = [list(range(h * per_host, min((h + 1) * per_host, num_devices))) for h in range(num_hosts)]
    gained = np.full((num_hosts, num_hosts), forbidden)
    within: dict[tuple[int, int], list[int]] = {}
    for old, new in product(range(num_hosts), repeat=2):
        if len(members[old]) == len(members[new]):
            kept = by_device[np.ix_(members[old], members[new])]
            rows, columns = scipy.optimize.linear_sum_assignment(kept, maximize=True)
            within[old, new] = [members[new][column] for column in columns]
            gained[old, new] = max(forbidden, kept[rows, columns].sum() + by_host[old, new])
    host = scipy.optimize.linear_sum_assignment(gained, maximize=True)[1].tolist()
    device = [name for old, new in enumerate(host) for name in within[old, new]]
    result = replace(placement, tables=tuple(_named(each, device, host) for each in placement.tables))
    return placement if violation(task, result) else result  # the last block of rows is smaller, so room may differ


def _named(sharding: TableSharding, device: Sequence[int], host: Sequence[int]) -> TableSharding:
    names = host if sharding.sharding_type in ON_ONE_HOST else device
    return replace(sharding, where=tuple(names[place] for place in sharding.where))


def _kept_bytes(
    task: PlacementTask, placement: Placement, before: Shards
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes kept if device (host) `i` of the placement is called `j`: `[D, D]` and `[H, H]`."""
    per_host, after = placement.devices_per_host, Shards.of(task, placement)
    by_device = np.zeros((placement.num_devices, placement.num_devices))
    by_host = np.zeros((placement.num_hosts, placement.num_hosts))
    found = _overlaps(task, after, before)
    new, old, num_bytes = after.device[found.new].numpy(), before.device[found.old].numpy(), found.num_bytes.numpy()
    on_one, on_host = (after.is_any(*kinds)[found.new].numpy() for kinds in (ON_ONE_DEVICE, ON_ONE_HOST))
    here = old < placement.num_devices
    alone, spread = here & on_one, here & on_host & (new % per_host == old % per_host)
    np.add.at(by_device, (new[alone], old[alone]), num_bytes[alone])
    np.add.at(by_host, (new[spread] // per_host, old[spread] // per_host), num_bytes[spread])
    return by_device, by_host


def _alike(task: PlacementTask, placement: Placement) -> NDArray[np.bool_]:
    """`[D, D]` whether two devices have the same room, may hold the same tables, and hold equal blocks of spread tables."""
    of_device = torch.cat([allowed_devices(task).long(), task.capacity_bytes[None]]).T  # [D, T + 1]
    kinds = torch.unique(of_device, dim=0, return_inverse=True)[1].numpy()  # [D]
    alike: NDArray[np.bool_] = kinds[:, None] == kinds
    devices = np.arange(placement.num_devices)
    spread = {
        (rows, placement.num_devices if sharding.sharding_type == "row_wise" else placement.devices_per_host)
        for rows, sharding in zip(task.tables.rows.tolist(), placement.tables, strict=True)
        if sharding.sharding_type in ("row_wise", *ON_ONE_HOST)
    }
    for rows, parts in spread:
        sizes = np.array([end - start for start, end in row_blocks(rows, parts)])[devices % parts]
        alike &= np.abs(sizes[:, None] - sizes) <= _EQUAL_BLOCKS * sizes.max()
    return alike


@dataclass(frozen=True, kw_only=True)
class MovePrice:
    """The cost of a byte that moves, against milliseconds of every step.

    Attributes:
        steps_until_next: training steps until tables are moved again, so how often a gain is had.
        bytes_per_s: moved by all devices together, while no step runs.
    """

    steps_until_next: int | float
    bytes_per_s: int | float

    def __post_init__(self) -> None:
        if not (self.steps_until_next > 0 and self.bytes_per_s > 0):
            raise ValueError(
                f"{self.steps_until_next} steps and {self.bytes_per_s} bytes/s give moving no price; both must be above zero"
            )

    def move_ms(self, moved_bytes: int) -> float:
        """Milliseconds for which training stops."""
        return 1e3 * moved_bytes / self.bytes_per_s

    def total_ms(self, overall_ms: float, moved_bytes: int) -> float:
        """Milliseconds of all steps and of moving."""
        return overall_ms * self.steps_until_next + self.move_ms(moved_bytes)


@dataclass(frozen=True)
class Point:
    """A legal placement on the way.

    Attributes:
        overall_ms: predicted cost of a step.
        moved_bytes: from the plan in use.
    """

    placement: Placement
    overall_ms: float
    moved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What to do about the plan in use.

    Attributes:
        chosen: of the least cost, moves included.
        kept: the plan in use, with new tables where the new placement has them; None if it cannot be kept.
        why_not_kept: the reason; empty if it can be kept.
        moved_all: the new placement.
        curve: the cheapest placement for the bytes that it moves, from the fewest on; the cost falls from point to point.
    """

    chosen: Point
    kept: Point | None
    why_not_kept: str
    moved_all: Point
    curve: tuple[Point, ...]


def weigh(task: PlacementTask, current: InUse, target: Placement, predictor: Predictor, price: MovePrice) -> Weighed:
    """Weigh the milliseconds that `target` saves against the bytes that it moves.

    Every table is sharded as in the plan in use or as in `target`, on any devices. The result is never worse than keeping
    everything or moving everything.

    Args:
        task: whose tables are placed.
        current: in use.
        target: a legal placement, its devices named so that little moves (`rename_devices`).
        predictor: of costs.
        price: of a byte moved.
    """
    before = current.shards

    def point(placement: Placement) -> Point:
        overall_ms = float(predictor.predict(task, placement).overall_ms())
        return Point(placement, overall_ms, moved_bytes(task, before, placement))

    def total(each: Point) -> float:
        return price.total_ms(each.overall_ms, each.moved_bytes)

    moved_all, kept, why_not = point(target), None, _for_others(current, target)
    start = target if why_not else _with_other_tables(current, target)
    if not why_not:
        try:
            kept = point(start)
        except ValueError as error:  # such as tables in host memory, whose cost no trained network knows
            why_not = f"its cost is not known: {first_line(error)}"
    if kept is None:
        return Weighed(chosen=moved_all, kept=None, why_not_kept=why_not, moved_all=moved_all, curve=(moved_all,))
    why_not = violation(task, start)
    points = [moved_all] if why_not else [kept, moved_all]
    even = max(kept.overall_ms - moved_all.overall_ms, _LEAST_GAIN * kept.overall_ms) / max(moved_all.moved_bytes, 1)
    own = 1e3 / price.bytes_per_s / price.steps_until_next  # [ms of a step per byte]
    between = _between(task, before, [start, target], predictor, [*(even * each for each in _PRICES), own])
    points += [point(each) for each in between if not violation(task, each)]
    points.append(point(rename_devices(task, min(points, key=total).placement, before)))
    curve: list[Point] = []
    for each in sorted(points, key=lambda each: (each.moved_bytes, each.overall_ms)):
        if not curve or each.overall_ms < curve[-1].overall_ms:
            curve.append(each)
    return Weighed(
        chosen=min(points, key=total),
        kept=None if why_not else kept,
        why_not_kept=why_not,
        moved_all=moved_all,
        curve=tuple(curve),
    )


def _for_others(current: InUse, target: Placement) -> str:
    """How the devices of the plan in use differ from the new placement's; empty if they do not."""
    held = current.placement
    if held.num_devices != target.num_devices:
        return f"it is for {held.num_devices} devices"
    if held.on_hosts_of(target.devices_per_host).devices_per_host != target.devices_per_host:
        return f"it spreads rows over hosts of {held.devices_per_host} devices"
    return ""


def _with_other_tables(current: InUse, target: Placement) -> Placement:
    """The plan in use, with tables that it does not have where the new placement has them."""
    tables = list(target.tables)
    for t, sharding in zip(current.number.tolist(), current.placement.tables, strict=True):
        tables[t] = sharding
    return replace(target, tables=tuple(tables))


def _between(
    task: PlacementTask, before: Shards, ends: Sequence[Placement], predictor: Predictor, prices: Sequence[float]
) -> list[Placement]:
    """The best placements found at each of several prices, in milliseconds of a step per byte moved.

    Every table is sharded as at either end; each search starts from the best of the ends and all that was found so far.
    """
    start, target = ends
    tables = [
        old if old.sharding_type in task.constraints.sharding_types_for(parent_name(name)) else new
        for name, old, new in zip(task.tables.names, start.tables, target.tables, strict=True)
    ]
    if (model := known_costs(predictor, task, target)) is None:
        return []
    try:
        options, found = ShardingOptions.given(task, model, [replace(start, tables=tuple(tables)), target])
    except ValueError:  # of the paper's network, which does not tell collectives apart
        return []
    num_bytes = _bytes_of_places(options, before)
    for price in prices:
        menu = options.menu._replace(price_ms=price * num_bytes)
        legal = [each for each in (priced(menu, *own) for own in found) if each is not None]
        best = anneal(menu, min(legal, key=lambda each: each.cost_ms), 4 * default_moves(task))
        found.append((best.option, best.place))
    placements = [options.placement(Found(*each, 0.0), joined=False) for each in found]
    return list(dict.fromkeys(replace(each, devices_per_host=target.devices_per_host) for each in placements))


def _bytes_of_places(options: ShardingOptions, before: Shards) -> Float[NDArray[np.float64], "R D"]:
    """Bytes that move if a range of columns is on each device, or host, or on all devices (column 0)."""
    menu, per_host = options.menu, options.menu.per_host
    shards, of_range = options.shards()
    found = _overlaps(options.task, shards, before)
    moves = ~before.is_any("data_parallel")[found.old]  # every device has its own of these
    new, old, num_bytes = (each[moves].numpy() for each in (found.new, found.old, found.num_bytes))
    own, block, device = of_range[new], shards.device.numpy()[new], before.device.numpy()[old]
    spread = menu.spread.repeat(np.diff(menu.first_range))[own]
    total = np.bincount(own, num_bytes, len(menu.load)).astype(np.float64)  # [R]
    result = total[:, None].repeat(menu.allowed.shape[1], axis=1)
    for kind, stays, place in (
        (ON_DEVICES, block == 0, device),
        (ON_HOST, device % per_host == block, device // per_host),
        (ON_ALL, device == block, np.zeros_like(device)),
    ):
        here = (spread == kind) & stays
        np.subtract.at(result, (own[here], place[here]), num_bytes[here])
    return result
