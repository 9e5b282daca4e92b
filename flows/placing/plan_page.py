"""A plan in words: one sentence, and a page in Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flows.placing.transition import transition_lines

if TYPE_CHECKING:
    from dreamshard.placement import Placement
    from dreamshard.plan import Plan
    from flows.placing.request import CheckedRequest, Placed


def prediction_sentence(plan: "Plan", placement: "Placement") -> str:
    """Who placed, what the plan costs, and how many tables are sharded in which way."""
    cost = "no cost is predicted" if plan.overall_ms is None else f"predicted {plan.overall_ms:.3f} ms"
    shards = _how_sharded(placement, len(plan.shards))
    return f"{plan.placer}: {cost} for {len(placement.tables)} tables on {plan.num_devices} devices{shards}"


def plan_page(checked: "CheckedRequest", placed: "Placed", path: str, html: str, notes: Sequence[str]) -> str:
    """What the plan costs on each device, how tables are sharded, what moves, and where the plan is.

    Args:
        checked: what was asked for.
        placed: its plan.
        path: of the plan's file.
        html: path of the page of HTML that shows it.
        notes: said on the way.
    """
    return "\n\n".join(_parts(checked, placed, path, html, notes))


def _parts(checked: "CheckedRequest", placed: "Placed", path: str, html: str, notes: Sequence[str]) -> Iterator[str]:
    from dreamshard.files.text import markdown_table

    plan, request = placed.plan, checked.request
    yield f"# {checked.task.name} on {plan.num_devices} devices"
    yield f"**{prediction_sentence(plan, placed.placement)}**"
    if plan.warning:
        yield f"**Warning:** {plan.warning}"
    if plan.costs_of is not None:
        yield f"Costs of {plan.costs_of}."
    yield f"The plan: `{path}`"
    yield f"To look at, table by table and device by device, in a browser: `{html}`"
    yield "## Devices"
    yield markdown_table(_device_rows(plan))
    yield "## Ways to shard"
    ways = Counter((sharding.sharding_type, sharding.cached_share is not None) for sharding in placed.placement.tables)
    yield markdown_table(
        [
            {"way": way, "memory": "host, with a cache" if cached else "device", "tables": count}
            for (way, cached), count in ways.most_common()
        ]
    )
    if request.constraints is not None:
        yield "## Constraints"
        yield _block(str(request.constraints).splitlines())
    if checked.in_use is not None and placed.way is not None:
        yield "## From the plan in use"
        yield _block(list(transition_lines(checked.task, checked.in_use, placed.way)))
    if notes:
        yield "## Notes"
        yield "\n".join(f"- {note}" for note in notes)


def _device_rows(plan: "Plan") -> list[dict[str, Any]]:
    """Predicted milliseconds by phase, and what is on each device."""
    from dreamshard.files.text import gib

    rows = []
    for device, figures in enumerate(plan.devices):
        phases = {
            name.removesuffix("_ms").replace("_", " "): ms for name, ms in figures.items() if name.endswith("_ms")
        }
        total = {"sum, ms": f"{sum(phases.values()):.3f}"} if phases else {}
        held: dict[str, Any] = {
            "device": device,
            "shards": figures["tables"],
            "memory": gib(int(figures["memory_bytes"])),
        }
        rows.append(held | {f"{phase}, ms": f"{ms:.3f}" for phase, ms in phases.items()} | total)
    return rows


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"])


def _how_sharded(placement: "Placement", num_shards: int) -> str:
    """`, split by columns into 12 shards`, or how many tables are sharded in which way; empty if all are whole."""
    if placement.is_by_columns:
        return f", split by columns into {num_shards} shards" if num_shards > len(placement.tables) else ""
    counts = Counter(sharding.sharding_type for sharding in placement.tables)
    cached = sum(sharding.cached_share is not None for sharding in placement.tables)
    in_host = f"; {cached} in host memory with a cache" if cached else ""
    return f": {', '.join(f'{count} {each}' for each, count in counts.most_common())}{in_host}"
