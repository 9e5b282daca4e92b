"""The placement of the least cost once moving is paid for, between keeping the plan in use and moving all of the way.

Candidates are the stops of two paths between the plan in use and the new placement, and those of local search from the best
of them and from the plan in use. The result is never worse than either end.
"""

from dataclasses import dataclass

from dreamshard.formatting import first_line
from dreamshard.legality import violation
from dreamshard.moving.blocks import blocks_of, moved_bytes
from dreamshard.moving.in_use import InUse
from dreamshard.moving.paths import paths
from dreamshard.moving.price import MovePrice, Point, frontier
from dreamshard.moving.relocation import MovedBytes, Relocation, Stop
from dreamshard.moving.renaming import renamed
from dreamshard.placement import Placement
from dreamshard.summed_costs import ShardedPredictor, SummedCosts
from dreamshard.tasks import PlacementTask

_CURVE = 24  # points, the most


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What to do about the plan in use.

    Attributes:
        chosen: of the least cost, moves included.
        kept: the plan in use, with new tables where the new placement has them; None where it cannot be kept.
        why_not_kept: the reason; empty where it can be kept.
        moved_all: the new placement.
        curve: the cheapest placement for the bytes that it moves, from the fewest on; the cost falls from point to point.
    """

    chosen: Point
    kept: Point | None
    why_not_kept: str
    moved_all: Point
    curve: tuple[Point, ...]


def weigh(
    task: PlacementTask, current: InUse, target: Placement, predictor: ShardedPredictor, price: MovePrice
) -> Weighed:
    """Weigh the milliseconds that `target` saves against the bytes that it moves.

    Args:
        task: whose tables are placed.
        current: in use.
        target: a legal placement, its devices named so that little moves (`renamed`).
        predictor: of costs.
        price: of a byte moved.
    """
    bytes_of = MovedBytes(task, current.blocks)
    bytes_of.learn(target)
    moved_all = _point(task, target, predictor, bytes_of)
    why_not = _for_others(current, target)
    if why_not:
        return Weighed(chosen=moved_all, kept=None, why_not_kept=why_not, moved_all=moved_all, curve=(moved_all,))
    start = _with_other_tables(task, current, target)
    bytes_of.learn(start)
    try:
        kept = _point(task, start, predictor, bytes_of)
    except ValueError as error:  # such as tables in host memory, whose cost no trained network knows
        why_not = f"its cost is not known: {first_line(error)}"
        return Weighed(chosen=moved_all, kept=None, why_not_kept=why_not, moved_all=moved_all, curve=(moved_all,))
    why_not = violation(task, start)
    points = [moved_all] if why_not else [kept, moved_all]
    summed = SummedCosts.of(predictor, task, [start, target])
    if summed is not None and start != target:
        for stop in _stops(Relocation(task, summed, bytes_of), start, target, price):
            placement = Placement(stop.shardings, target.num_devices, target.devices_per_host)
            if not violation(task, placement):
                points.append(_point(task, placement, predictor, bytes_of))
    chosen = min(points, key=lambda point: price.total_ms(point.overall_ms, point.moved_bytes))
    again = renamed(task, chosen.placement, current.blocks)
    if moved_bytes(current.blocks, blocks_of(task, again)) < chosen.moved_bytes:
        bytes_of.learn(again)
        points.append(_point(task, again, predictor, bytes_of))
        chosen = min(chosen, points[-1], key=lambda point: price.total_ms(point.overall_ms, point.moved_bytes))
    return Weighed(
        chosen=chosen,
        kept=None if why_not else kept,
        why_not_kept=why_not,
        moved_all=moved_all,
        curve=tuple(frontier(points)),
    )


def _for_others(current: InUse, target: Placement) -> str:
    """In what the plan in use is for other devices than the new placement; empty where it is not."""
    held = current.placement
    if held.num_devices != target.num_devices:
        return f"it is for {held.num_devices} devices"
    if held.on_hosts_of(target.devices_per_host).devices_per_host != target.devices_per_host:
        return f"it spreads rows over hosts of {held.devices_per_host} devices"
    return ""


def _stops(relocation: Relocation, start: Placement, target: Placement, price: MovePrice) -> list[Stop]:
    """Those worth a look: the best in total, and those of the curve of cost against bytes."""
    ends = [relocation.stop(start), relocation.stop(target)]
    stops = [*ends, *paths(relocation, *ends)]

    def total(stop: Stop) -> float:
        return price.total_ms(stop.overall_ms, stop.moved_bytes)

    fitting = [stop for stop in stops if stop.fits]
    begin = {id(stop): stop for stop in (min(fitting, key=total), min(fitting, key=lambda stop: stop.moved_bytes))}
    for stop in begin.values():
        fitting += relocation.improve(stop, ends, price)
    best: list[Stop] = []
    for stop in sorted(fitting, key=lambda stop: (stop.moved_bytes, stop.overall_ms)):
        if not best or stop.overall_ms < best[-1].overall_ms:
            best.append(stop)
    shown = {round(i * (len(best) - 1) / max(_CURVE - 1, 1)) for i in range(_CURVE)} if len(best) > _CURVE else None
    cheapest = min(best, key=total)
    return [stop for i, stop in enumerate(best) if shown is None or i in shown or stop is cheapest]


def _point(task: PlacementTask, placement: Placement, predictor: ShardedPredictor, bytes_of: MovedBytes) -> Point:
    moved = sum(bytes_of.of(t, sharding) for t, sharding in enumerate(placement.tables))
    return Point(placement, float(predictor.predict(task, placement).overall_ms()), moved)


def _with_other_tables(task: PlacementTask, current: InUse, target: Placement) -> Placement:
    """The plan in use, with tables that it does not have where the new placement has them."""
    held = dict(zip(current.task.tables.names, current.placement.tables, strict=True))
    shardings = tuple(held.get(name, new) for name, new in zip(task.tables.names, target.tables, strict=True))
    return Placement(shardings, target.num_devices, target.devices_per_host)
