"""The page of a plan that a person asked for: its figures beside those of the plan in use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.moving import InUse
    from dreamshard.tasks import PlacementTask
    from flows.placing.placers import Predictor
    from flows.placing.request import CheckedRequest, Placed
    from flows.placing.transition import Transition
    from flows.reports.plan_view.data import PlanView, Side


def plan_html(checked: "CheckedRequest", placed: "Placed") -> str:
    """One file of HTML that shows the plan; importing what draws it takes a second or two."""
    from flows.reports.plan_view.page import plan_html as page_of

    return page_of(view_of(checked, placed))


def view_of(checked: "CheckedRequest", placed: "Placed") -> "PlanView":
    """What the page shows."""
    from dreamshard.explain import table_shares
    from flows.reports.plan_view.data import PlanView, Side, move_lines

    task, way, in_use = checked.task, placed.way, checked.in_use
    shares = table_shares(task, placed.placement, placed.predictor)
    name = "plan" if in_use is None else "new plan"
    view = PlanView(
        title=task.name,
        task=task,
        side=Side.of(name, task, placed.placement, shares),
        facts=tuple(_facts(checked, placed)),
        warning=placed.plan.warning,
        notes=tuple(_notes(checked, placed)),
    )
    if in_use is None or way is None:
        return view
    from dataclasses import replace

    moves, moved_to, moved_from = move_lines(task, way.steps, _stay_ms(task, way, in_use, placed.predictor))
    before = _side_in_use(task, way, in_use, placed.predictor)
    return replace(view, before=before, moves=moves, moved_to=moved_to, moved_from=moved_from)


def _facts(checked: "CheckedRequest", placed: "Placed") -> Iterator[tuple[str, str]]:
    """What is said at the top."""
    from dreamshard.files.text import gib

    plan, task = placed.plan, checked.task
    if plan.overall_ms is not None:
        yield "predicted cost of a step", f"{plan.overall_ms:.3f} ms"
    yield "placed by", plan.placer
    if placed.predictor is not None:
        yield "costs predicted by", placed.predicted_by
        yield "costs of", str(plan.costs_of) if plan.costs_of is not None else "unknown hardware"
    capacity = task.capacity_bytes.tolist()
    fullest = max(int(device["memory_bytes"]) for device in plan.devices)
    room = gib(min(capacity)) if min(capacity) == max(capacity) else f"{gib(min(capacity))} to {gib(max(capacity))}"
    yield "fullest device", f"{gib(fullest)}, room for {room}"
    batch = f", batch {task.batch_size:,}" if task.batch_size else ""
    yield "tables are trained with", f"{task.precision}, {task.optimizer}{batch}"


def _notes(checked: "CheckedRequest", placed: "Placed") -> Iterator[str]:
    in_use, way = checked.in_use, placed.way
    if in_use is None or way is None:
        return
    if way.weighed is not None and way.weighed.kept is None:
        yield f"The plan in use cannot be kept ({way.weighed.why_not_kept}), so its bars are of its tables as they are."
    elif way.weighed is not None and in_use.loaded:
        yield "Tables that the plan in use lacks, or has in another size, are shown in it where the new plan has them."
    if in_use.removed:
        count = len(in_use.removed)
        yield f"{count} {'table' if count == 1 else 'tables'} of the plan in use are gone and shown nowhere."
    if any(step.kind != "move" for step in way.steps):
        yield "Steps beside moves: `cut` re-splits a table on its device, `load` loads one that is new or of another size."


def _side_in_use(task: "PlacementTask", way: "Transition", in_use: "InUse", predictor: "Predictor | None") -> "Side":
    """The plan in use: with today's tables where it can be kept, else as it is."""
    from dataclasses import replace

    from dreamshard.explain import table_shares
    from flows.reports.plan_view.data import Side

    kept = None if way.weighed is None else way.weighed.kept
    if kept is not None:
        return Side.of("plan in use", task, kept.placement, table_shares(task, kept.placement, predictor))
    shares = table_shares(in_use.task, in_use.placement, predictor)
    return Side.of("plan in use", in_use.task, in_use.placement, replace(shares, table=in_use.number[shares.table]))


def _stay_ms(
    task: "PlacementTask", way: "Transition", in_use: "InUse", predictor: "Predictor | None"
) -> dict[str, float]:
    """How much longer a step would take if each table that moves stayed as it was, and all others moved."""
    from dreamshard.search.changes import Changes, known_costs

    kept = None if way.weighed is None else way.weighed.kept
    costs = None if kept is None or predictor is None else known_costs(predictor, task, way.placement)
    if kept is None or costs is None:
        return {}
    moved = {step.table for step in way.steps if step.kind in ("move", "cut")} & {*in_use.task.tables.names}
    numbers = [t for t, name in enumerate(task.tables.names) if name in moved]
    changes = Changes.of(task, costs, way.placement, [[each] for each in kept.placement.tables])
    after_ms = changes.after([(t, kept.placement.tables[t]) for t in numbers]).device_ms.max(axis=1)
    extra_ms = (after_ms - changes.device_ms().max()).tolist()
    return {task.tables.names[t]: ms for t, ms in zip(numbers, extra_ms, strict=True)}
