"""A plan in sentences: its cost, and its moves from the current plan."""

from collections import Counter
from collections.abc import Iterator

from dreamshard.files import gib, shown
from dreamshard.moving import Point
from dreamshard.plan import Plan
from flows.placing.request import Placed


def prediction_sentence(plan: Plan) -> str:
    """Who placed, what the plan costs, and how many tables have which sharding type."""
    overall_ms, tables = plan.predicted.overall_ms, plan.tables.values()
    cost = "no cost is predicted" if overall_ms is None else f"predicted {overall_ms:.3f} ms"
    types = Counter[str](table.sharding_type for table in tables)
    types.update("cached" for table in tables if table.cached_share is not None)
    how = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
    return f"{plan.placer}: {cost} for {len(tables)} tables on {plan.num_devices} devices: {how}"


def unmeasured_sentence(plan: Plan) -> str:
    """How many tables have sharding types that no training measures; empty if none has, or nothing is predicted."""
    count = len(plan.not_measured)
    if plan.predicted.overall_ms is None or not count:
        return ""
    return f"{count} tables have sharding types that no training measures: their costs are predicted, not measured"


def moving_lines(placed: Placed) -> Iterator[str]:
    """Cost of the current plan, gain and moves of the chosen one; nothing without a current plan."""
    price, weighed, current, kept = placed.request.price, placed.weighed, placed.request.current, placed.kept
    if current is None:
        return
    if weighed is not None:
        rate = f"{price.bytes_per_s / 1e9:g} GB/s"
        yield f"a gain has to pay for its moves within {price.steps_until_next:,.0f} steps; tables move at {rate}"
    if weighed is not None and kept is None:
        yield f"the current plan cannot be kept: {weighed.why_not_kept}"
    elif weighed is not None and kept is not None:
        gain, chosen = _gain(kept, weighed.moved_all), weighed.chosen
        yield f"current plan: predicted {kept.overall_ms:.3f} ms; new plan with all its moves: {gain}"
        if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
            yield "keep the current plan: no gain pays for its moves"
        else:
            seconds = price.move_ms(chosen.moved_bytes) / 1e3
            yield f"chosen: {_gain(kept, chosen)}; training stops for {seconds:.3g} s to move them"
        yield "  GiB moved        ms      gain"
        for point in weighed.curve:
            yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {_saved(kept, point):8.2%}"
    parts = [
        f"{len(placed.moved_tables)} of {len(current.sharding_of)} tables move, {gib(placed.moved_bytes)} in total"
    ]
    named = {"new": current.new, "resized": current.changed, "removed": current.removed}
    parts += [f"{how}: {shown(names)}" for how, names in named.items() if names]
    yield "; ".join(parts)


def _saved(kept: Point, point: Point) -> float:
    return 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0


def _gain(kept: Point, point: Point) -> str:
    saved = _saved(kept, point)
    change = f"{abs(kept.overall_ms - point.overall_ms):.3f} ms ({abs(saved):.1%}) {'less' if saved >= 0 else 'more'}"
    return f"{point.overall_ms:.3f} ms, {change}, moving {gib(point.moved_bytes)}"
