"""From the plan in use to a new one: what moves, what it gains, and sentences that say so."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.moving import InUse, MovePrice, Point, Step, Weighed
    from dreamshard.placement import Placement
    from dreamshard.tasks import PlacementTask
    from flows.placing.placers import Predictor


@dataclass(frozen=True)
class Transition:
    """The way from the plan in use to the one that is chosen.

    Attributes:
        placement: that is chosen.
        steps: to it.
        weighed: against keeping the plan in use; None where no costs are predicted.
        price: of moving.
    """

    placement: "Placement"
    steps: "tuple[Step, ...]"
    weighed: "Weighed | None"
    price: "MovePrice"

    @property
    def moved_bytes(self) -> int:
        """Of all moves between devices."""
        return sum(step.memory_bytes for step in self.steps if step.kind == "move")


def transition(
    task: "PlacementTask",
    current: "InUse",
    placement: "Placement",
    predictor: "Predictor | None",
    steps_until_next: float,
    move_gb_per_s: float,
) -> Transition:
    """What to move; without predicted costs all of the way, with names of devices that keep most."""
    from dreamshard.moving import MovePrice, rename_devices, steps, weigh

    price = MovePrice(steps_until_next=steps_until_next, bytes_per_s=1e9 * move_gb_per_s)
    before = current.shards
    placement, weighed = rename_devices(task, placement, before), None
    if predictor is not None:
        weighed = weigh(task, current, placement, predictor, price)
        placement = weighed.chosen.placement
    return Transition(placement, steps(task, before, placement), weighed, price)


def transition_lines(task: "PlacementTask", current: "InUse", way: Transition, options: str = "") -> Iterator[str]:
    """What the plan in use costs, what the chosen one gains, and what moves.

    Args:
        options: where a person sets the price of moving, added to its line.
    """
    if way.weighed is not None:
        yield from _gain_lines(way.weighed, way.price, options)
    yield from _move_lines(task, current, way)


def _gain_lines(weighed: "Weighed", price: "MovePrice", options: str) -> Iterator[str]:
    from dreamshard.files.text import gib

    steps, rate = f"{price.steps_until_next:,.0f} steps", f"{price.bytes_per_s / 1e9:g} GB/s"
    yield f"weighed over {steps} until the next change, at {rate} while tables move{options}"
    chosen, everything, kept = weighed.chosen, weighed.moved_all, weighed.kept
    if kept is None:
        yield f"the plan in use cannot be kept: {weighed.why_not_kept}"
        return
    yield f"the plan in use: predicted {kept.overall_ms:.3f} ms; all of the new plan: {_gain(kept, everything)}"
    if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
        yield "keep it: no gain is worth its moves"
    else:
        seconds = price.move_ms(chosen.moved_bytes) / 1e3
        yield f"chosen: {_gain(kept, chosen)}; moving stops training for {seconds:.3g} s"
    if len(weighed.curve) > 1:
        yield "  GiB moved        ms      gain"
        for point in weighed.curve:
            share = 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0
            free = (
                "  (without moves: copies dropped, tables re-split, or loaded from elsewhere)"
                if not point.moved_bytes and share > 0
                else ""
            )
            yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {share:8.2%}{free}"


def _gain(kept: "Point", point: "Point") -> str:
    from dreamshard.files.text import gib

    saved = kept.overall_ms - point.overall_ms
    share = abs(saved) / kept.overall_ms if kept.overall_ms else 0.0
    change = f"{abs(saved):.3f} ms ({share:.1%}) {'less' if saved >= 0 else 'more'}"
    return f"{point.overall_ms:.3f} ms, {change} for {gib(point.moved_bytes)}"


def _move_lines(task: "PlacementTask", current: "InUse", way: Transition) -> Iterator[str]:
    from dreamshard.files.text import gib

    steps = [step for step in way.steps if step.kind != "load"]
    moved = [step for step in steps if step.kind == "move"]
    tables = {step.table for step in moved}
    parts = f" in {len(moved)} parts" if len(moved) > len(tables) else ""
    others = {"new": current.new, "of another size": current.changed, "gone": current.removed}
    named = [f"{how}: {_listed(names)}" for how, names in others.items() if names]
    cut = {step.table for step in steps if step.kind == "cut"} - tables
    if cut:
        named.insert(0, f"{len(cut)} re-split where they are, which moves nothing")
    more = f"; {'; '.join(named)}" if named else ""
    total = gib(way.moved_bytes)
    yield f"{len(tables)} of {len(current.task.tables)} tables move{parts}, {total} in all{more}{':' if steps else ''}"
    for step in steps:
        yield f"  {_step(task, step)}"


def _listed(names: tuple[str, ...]) -> str:
    """The first names, and how many there are beside them."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _step(task: "PlacementTask", step: "Step") -> str:
    t = task.tables.names.index(step.table)
    what = step.table
    if step.columns != (0, int(task.tables.dim[t])):
        what += f", columns {step.columns[0]} to {step.columns[1]}"
    if step.rows != (0, int(task.tables.rows[t])):
        what += f", rows {step.rows[0]} to {step.rows[1]}"
    size = f"{step.memory_bytes / 2**20:.4g} MiB"
    if step.kind == "cut":
        return f"{what}: re-split on device {step.target}, {size}"
    return f"{what}: device {step.source} -> {step.target}, {size}"
