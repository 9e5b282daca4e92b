"""A plan in words and pictures: one sentence, a page in Markdown, and the figures of the page in HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dreamshard.costs import PHASES
from dreamshard.explain import table_shares
from dreamshard.files.text import gib, markdown_table
from dreamshard.search.costs import changed_ms, known_costs
from flows.placing.request import CheckedRequest, Placed
from flows.placing.sentences import prediction_sentence, transition_lines, unmeasured_sentence
from flows.reports.plan_view.page import plan_html
from flows.reports.plan_view.view import PlanView, Side


def plan_page(checked: CheckedRequest, placed: Placed, path: str, html: str, notes: Sequence[str]) -> str:
    """The cost of the plan on each device, how tables are sharded, what moves, and where the plan is.

    Args:
        checked: what was asked for.
        placed: its plan.
        path: of the plan's file.
        html: path of the page of HTML that shows it.
        notes: said on the way.
    """
    return "\n\n".join(_parts(checked, placed, path, html, notes))


def _parts(checked: CheckedRequest, placed: Placed, path: str, html: str, notes: Sequence[str]) -> Iterator[str]:
    plan, options = placed.plan, checked.options
    yield f"# {checked.task.name} on {plan.num_devices} devices"
    yield f"**{prediction_sentence(plan, placed.placement)}**"
    if plan.warning:
        yield f"**Warning:** {plan.warning}"
    if plan.costs_of is not None:
        yield f"Costs of {plan.costs_of}. {unmeasured_sentence(plan)}"
    yield f"The plan: `{path}`"
    yield f"To look at, table by table and device by device, in a browser: `{html}`"
    yield "## Devices"
    yield markdown_table([_device_row(device, figures) for device, figures in enumerate(plan.predicted.devices)])
    if options.constraints is not None:
        yield "## Constraints"
        yield _block(str(options.constraints).splitlines())
    if checked.in_use is not None and placed.way is not None:
        yield "## From the plan in use"
        yield _block(list(transition_lines(checked.task, checked.in_use, placed.way)))
    if notes:
        yield "## Notes"
        yield "\n".join(f"- {note}" for note in notes)


def _device_row(device: int, figures: Any) -> dict[str, Any]:
    row = {"device": device, "shards": figures["tables"], "memory": gib(int(figures["memory_bytes"]))}
    phases = {phase.replace("_", " "): figures[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in figures}
    return row | {
        f"{name}, ms": f"{ms:.3f}" for name, ms in (phases | ({"sum": sum(phases.values())} if phases else {})).items()
    }


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"])


def html_page(checked: CheckedRequest, placed: Placed) -> str:
    """The page in HTML: the plan beside the one in use."""
    return plan_html(_view(checked, placed))


def _view(checked: CheckedRequest, placed: Placed) -> PlanView:
    task, way, in_use = checked.task, placed.way, checked.in_use
    shares = table_shares(task, placed.placement, placed.predictor)
    view = PlanView(
        title=task.name,
        task=task,
        side=Side.of("plan" if in_use is None else "new plan", task, placed.placement, shares),
        facts=tuple(_facts(checked, placed)),
        warning=placed.plan.warning,
        notes=tuple(_notes(checked, placed)),
    )
    if in_use is None or way is None:
        return view
    return replace(view, before=_side_in_use(checked, placed), steps=way.steps, stay_ms=_stay_ms(checked, placed))


def _facts(checked: CheckedRequest, placed: Placed) -> Iterator[tuple[str, str]]:
    plan, task = placed.plan, checked.task
    if plan.predicted.overall_ms is not None:
        yield "predicted cost of a step", f"{plan.predicted.overall_ms:.3f} ms"
    yield "placed by", plan.placer
    if placed.predictor is not None:
        yield "costs predicted by", placed.predicted_by
        yield "costs of", str(plan.costs_of) if plan.costs_of is not None else "unknown hardware"
    capacity = task.capacity_bytes.tolist()
    fullest = max(int(device["memory_bytes"]) for device in plan.predicted.devices)
    room = gib(min(capacity)) if min(capacity) == max(capacity) else f"{gib(min(capacity))} to {gib(max(capacity))}"
    yield "fullest device", f"{gib(fullest)}, room for {room}"
    batch = f", batch {task.batch_size:,}" if task.batch_size else ""
    yield "tables are trained with", f"{task.precision}, {task.optimizer}{batch}"


def _notes(checked: CheckedRequest, placed: Placed) -> Iterator[str]:
    in_use, way = checked.in_use, placed.way
    if sentence := unmeasured_sentence(placed.plan):
        yield f"{sentence}."
    if in_use is None or way is None:
        return
    if way.weighed is not None and way.weighed.kept is None:
        yield f"The plan in use cannot be kept ({way.weighed.why_not_kept}), so its bars are of its tables as they are."
    elif way.weighed is not None and (in_use.new or in_use.changed):
        yield "Tables that the plan in use lacks, or has in another size, are shown in it where the new plan has them."
    if in_use.removed:
        yield f"Tables of the plan in use that are gone are not shown ({len(in_use.removed)})."
    if any(step.kind != "move" for step in way.steps):
        yield "Steps beside moves: `cut` re-splits a table on its device, `load` loads one that is new or of another size."


def _side_in_use(checked: CheckedRequest, placed: Placed) -> Side:
    """The plan in use: with today's tables if it can be kept, otherwise as it is."""
    task, in_use, predictor = checked.task, checked.in_use, placed.predictor
    assert in_use is not None
    if placed.way is not None and (kept := placed.way.kept) is not None:
        return Side.of("plan in use", task, kept.placement, table_shares(task, kept.placement, predictor))
    shares = table_shares(in_use.task, in_use.placement, predictor)
    return Side.of("plan in use", in_use.task, in_use.placement, replace(shares, table=in_use.number[shares.table]))


def _stay_ms(checked: CheckedRequest, placed: Placed) -> dict[str, float]:
    """How much longer a step would take if each table that moves stayed as it was, and all others moved."""
    task, way, in_use, predictor = checked.task, placed.way, checked.in_use, placed.predictor
    if way is None or (kept := way.kept) is None or in_use is None or predictor is None:
        return {}
    if (model := known_costs(predictor, task, way.placement)) is None:
        return {}
    moved = {step.table for step in way.steps if step.kind != "load"} & {*in_use.task.tables.names}
    numbers = [t for t, name in enumerate(task.tables.names) if name in moved]
    stays = [(t, kept.placement.tables[t]) for t in numbers]
    after_ms, _ = changed_ms(model, way.placement, [(0, way.placement.tables[0]), *stays])
    overall_ms = after_ms.max(dim=1).values
    return {task.tables.names[t]: ms for t, ms in zip(numbers, (overall_ms[1:] - overall_ms[0]).tolist(), strict=True)}
