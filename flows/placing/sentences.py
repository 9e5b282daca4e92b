"""A plan in sentences: what it costs, and what moves from the plan in use."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dreamshard.files.text import gib
from dreamshard.moving import InUse, MovePrice, Point, Step, Weighed, rename_devices, steps, weigh
from dreamshard.placement import Placement
from dreamshard.plan import Plan
from dreamshard.search.costs import Predictor
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class Transition:
    """The way from the plan in use to the one that is chosen.

    Attributes:
        placement: that is chosen.
        steps: to it.
        weighed: against keeping the plan in use; None if no costs are predicted.
        price: of moving.
    """

    placement: Placement
    steps: tuple[Step, ...]
    weighed: Weighed | None
    price: MovePrice

    @property
    def kept(self) -> Point | None:
        """The plan in use with today's tables; None if it cannot be kept, or no costs are predicted."""
        return None if self.weighed is None else self.weighed.kept

    @property
    def moved_bytes(self) -> int:
        """Of all moves between devices."""
        return sum(step.memory_bytes for step in self.steps if step.kind == "move")


def transition(
    task: PlacementTask, current: InUse, placement: Placement, predictor: Predictor | None, price: MovePrice
) -> Transition:
    """What to move; without predicted costs all of the way, with names of devices that keep most."""
    placement, weighed = rename_devices(task, placement, current.shards), None
    if predictor is not None:
        weighed = weigh(task, current, placement, predictor, price)
        placement = weighed.chosen.placement
    return Transition(placement, steps(task, current.shards, placement), weighed, price)


def prediction_sentence(plan: Plan, placement: Placement) -> str:
    """Who placed, what the plan costs, and how many tables are sharded in which way."""
    overall_ms = plan.predicted.overall_ms
    cost = "no cost is predicted" if overall_ms is None else f"predicted {overall_ms:.3f} ms"
    ways = Counter(sharding.sharding_type for sharding in placement.tables)
    cached = sum(sharding.cached_share is not None for sharding in placement.tables)
    how = "" if set(ways) == {"table_wise"} else f": {', '.join(f'{n} {way}' for way, n in ways.most_common())}"
    how += f"; {cached} in host memory with a cache" if cached else ""
    return f"{plan.placer}: {cost} for {len(placement.tables)} tables on {plan.num_devices} devices{how}"


def unmeasured_sentence(plan: Plan) -> str:
    """How many tables are sharded in ways that no training measures; empty if none is, or nothing is predicted."""
    count = len(plan.not_measured)
    if plan.predicted.overall_ms is None or not count:
        return ""
    return f"{count} tables are sharded in ways that no training measures: their costs are predicted, not measured"


def transition_lines(task: PlacementTask, current: InUse, way: Transition, options: str = "") -> Iterator[str]:
    """What the plan in use costs, what the chosen one gains, and what moves.

    Args:
        options: where a person sets the price of moving, added to its line.
    """
    if way.weighed is not None:
        yield from _gain_lines(way.weighed, way.price, options)
    yield from _move_lines(task, current, way)


def _gain_lines(weighed: Weighed, price: MovePrice, options: str) -> Iterator[str]:
    steps, rate = f"{price.steps_until_next:,.0f} steps", f"{price.bytes_per_s / 1e9:g} GB/s"
    yield f"weighed over {steps} until the next change, at {rate} while tables move{options}"
    chosen, kept = weighed.chosen, weighed.kept
    if kept is None:
        yield f"the plan in use cannot be kept: {weighed.why_not_kept}"
        return
    yield f"the plan in use: predicted {kept.overall_ms:.3f} ms; all of the new plan: {_gain(kept, weighed.moved_all)}"
    if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
        yield "keep it: no gain is worth its moves"
    else:
        seconds = price.move_ms(chosen.moved_bytes) / 1e3
        yield f"chosen: {_gain(kept, chosen)}; moving stops training for {seconds:.3g} s"
    if len(weighed.curve) > 1:
        yield "  GiB moved        ms      gain"
        for point in weighed.curve:
            share = 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0
            yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {share:8.2%}"


def _gain(kept: Point, point: Point) -> str:
    saved = kept.overall_ms - point.overall_ms
    share = abs(saved) / kept.overall_ms if kept.overall_ms else 0.0
    change = f"{abs(saved):.3f} ms ({share:.1%}) {'less' if saved >= 0 else 'more'}"
    return f"{point.overall_ms:.3f} ms, {change} for {gib(point.moved_bytes)}"


def _move_lines(task: PlacementTask, current: InUse, way: Transition) -> Iterator[str]:
    steps = [step for step in way.steps if step.kind != "load"]
    moved = {step.table for step in steps if step.kind == "move"}
    parts = [f"{len(moved)} of {len(current.task.tables)} tables move, {gib(way.moved_bytes)} in all"]
    if cut := {step.table for step in steps if step.kind == "cut"} - moved:
        parts.append(f"{len(cut)} re-split where they are, which moves nothing")
    others = {"new": current.new, "of another size": current.changed, "gone": current.removed}
    parts += [f"{how}: {_listed(names)}" for how, names in others.items() if names]
    yield "; ".join(parts) + (":" if steps else "")
    for step in steps:
        yield f"  {_step(task, step)}"


def _listed(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _step(task: PlacementTask, step: Step) -> str:
    t = task.tables.names.index(step.table)
    what = step.table
    if step.columns != (0, int(task.tables.dim[t])):
        what += f", columns {step.columns[0]} to {step.columns[1]}"
    if step.rows != (0, int(task.tables.rows[t])):
        what += f", rows {step.rows[0]} to {step.rows[1]}"
    way = f"re-split on device {step.target}" if step.kind == "cut" else f"device {step.source} -> {step.target}"
    return f"{what}: {way}, {step.memory_bytes / 2**20:.4g} MiB"
