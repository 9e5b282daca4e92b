"""A plan in sentences: its cost, and its moves from the plan in use."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dreamshard.files.text import gib, shown
from dreamshard.moving import Point
from dreamshard.plan import Plan
from flows.placing.request import Placed
from flows.reports.pages import markdown_table


def prediction_sentence(plan: Plan) -> str:
    """Who placed, what the plan costs, and how many tables are sharded in which way."""
    overall_ms, tables = plan.predicted.overall_ms, plan.tables.values()
    cost = "no cost is predicted" if overall_ms is None else f"predicted {overall_ms:.3f} ms"
    ways = Counter[str](each.sharding_type for each in tables)
    ways.update("cached" for each in tables if each.cached_share is not None)
    how = ", ".join(f"{count} {way}" for way, count in ways.most_common())
    return f"{plan.placer}: {cost} for {len(tables)} tables on {plan.num_devices} devices: {how}"


def unmeasured_sentence(plan: Plan) -> str:
    """How many tables are sharded in ways that no training measures; empty if none is, or nothing is predicted."""
    count = len(plan.not_measured)
    if plan.predicted.overall_ms is None or not count:
        return ""
    return f"{count} tables are sharded in ways that no training measures: their costs are predicted, not measured"


def moving_lines(placed: Placed) -> Iterator[str]:
    """Cost of the plan in use, gain and moves of the chosen one; nothing without a plan in use."""
    price, weighed, in_use, kept = placed.request.price, placed.weighed, placed.request.in_use, placed.kept
    if in_use is None:
        return
    if weighed is not None:
        rate = f"{price.bytes_per_s / 1e9:g} GB/s"
        yield f"weighed over {price.steps_until_next:,.0f} steps until the next change, at {rate} while tables move"
    if weighed is not None and kept is None:
        yield f"the plan in use cannot be kept: {weighed.why_not_kept}"
    elif weighed is not None and kept is not None:
        gain, chosen = _gain(kept, weighed.moved_all), weighed.chosen
        yield f"the plan in use: predicted {kept.overall_ms:.3f} ms; all of the new plan: {gain}"
        if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
            yield "keep it: no gain is worth its moves"
        else:
            seconds = price.move_ms(chosen.moved_bytes) / 1e3
            yield f"chosen: {_gain(kept, chosen)}; moving stops training for {seconds:.3g} s"
        yield "  GiB moved        ms      gain"
        for point in weighed.curve:
            yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {_saved(kept, point):8.2%}"
    parts = [f"{len(placed.moved_tables)} of {len(in_use.sharding_of)} tables move, {gib(placed.moved_bytes)} in all"]
    named = {"new": in_use.new, "of another size": in_use.changed, "gone": in_use.removed}
    parts += [f"{how}: {shown(names)}" for how, names in named.items() if names]
    yield "; ".join(parts)


def _saved(kept: Point, point: Point) -> float:
    return 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0


def _gain(kept: Point, point: Point) -> str:
    saved = _saved(kept, point)
    change = f"{abs(kept.overall_ms - point.overall_ms):.3f} ms ({abs(saved):.1%}) {'less' if saved >= 0 else 'more'}"
    return f"{point.overall_ms:.3f} ms, {change} for {gib(point.moved_bytes)}"


def markdown_page(placed: Placed, path: str, html: str, notes: Sequence[str]) -> str:
    """The cost of the plan on each device, how tables are sharded, what moves, and where the plan is.

    Args:
        placed: the plan and its request.
        path: of the plan's file.
        html: path of the page of HTML that shows it.
        notes: said on the way.
    """
    plan, request, moving = placed.plan, placed.request, [*moving_lines(placed)]
    devices = [{"device": d, **figures} for d, figures in enumerate(plan.predicted.devices)]
    parts: list[Any] = [
        f"# {request.task.name} on {plan.num_devices} devices",
        f"**{prediction_sentence(plan)}**",
        plan.warning and f"**Warning:** {plan.warning}",
        plan.costs_of and f"Costs of {plan.costs_of}. {unmeasured_sentence(plan)}",
        f"The plan: `{path}`",
        f"To look at, table by table and device by device, in a browser: `{html}`",
        f"## Devices\n\n{markdown_table(devices)}",
        request.options.constraints and f"## Constraints\n\n```\n{request.options.constraints}\n```",
        moving and "\n".join(["## From the plan in use\n\n```", *moving, "```"]),
        "\n".join(["## Notes\n", *(f"- {note}" for note in notes)]),
    ]
    return "\n\n".join(filter(None, parts))
