"""Places the tables of a list or a model under constraints, as the command `place` does."""

import re
from collections.abc import Sequence
from typing import Any

from dreamshard.files import digest
from dreamshard.workloads import known_as
from flows.forms.form import deployed
from flows.forms.options import PlaceOptions
from flows.placing import request
from flows.placing.plan_page import html_page
from flows.placing.request import Placed
from flows.placing.sentences import moving_lines, prediction_sentence, unmeasured_sentence
from flows.reports.pages import markdown_table, publish
from flows.runtime.tasks import announce, retried_task
from storage.filesystem import AnyPath, write_text
from storage.run_records.trainings import model_name
from storage.store import Store, open_store


@deployed
def place(options: PlaceOptions) -> dict[str, Any]:
    """Tables and constraints -> plan in the store, and a page on its cost and moves."""
    return place_tables(open_store(), options)


@retried_task("place tables")
def place_tables(store: Store, options: PlaceOptions) -> dict[str, Any]:
    """Options -> plan in the store, named by the tables and its own digest, and pages; returns the flow's outcome.

    Next to the plan is a page of HTML of the same name; Prefect shows one in Markdown, which names both.

    Raises:
        ValueError: the options are wrong, for example their constraints contradict each other; before anything is placed.
        NoPlacementError: no placement was found that respects the constraints.
    """
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        announce(sentence)

    placed = request.place(store, request.check(store, options, note), note)
    plan, text = placed.plan, placed.plan.to_json()
    name = re.sub(r"[^\w.-]+", "-", placed.request.task.name)
    target = store.plans / f"{name}-{digest(text)}.json"
    html = target.with_suffix(".html")
    write_text(html, html_page(placed))
    write_text(target, text)
    sentence = prediction_sentence(plan)
    announce(f"{sentence}; wrote {target} and, to look at in a browser, {html}")
    publish(markdown_page(placed, target, notes), f"placed-{model_name(known_as(options.tables))}", sentence)
    return {
        "plan": str(target),
        "page": str(html),
        "placer": plan.placer,
        "overall_ms": plan.predicted.overall_ms,
        "costs_of": None if plan.costs_of is None else str(plan.costs_of),
        "warning": plan.warning,
        "moved_bytes": placed.moved_bytes,
    }


def markdown_page(placed: Placed, path: AnyPath, notes: Sequence[str]) -> str:
    """The cost of the plan on each device, how tables are sharded, what moves, and where the plan is.

    Args:
        placed: the plan and its request.
        path: of the plan's file, which has a page of HTML beside it.
        notes: sentences shown while placing.
    """
    plan, request, moving = placed.plan, placed.request, [*moving_lines(placed)]
    devices = [{"device": d, **figures} for d, figures in enumerate(plan.predicted.devices)]
    parts: list[Any] = [
        f"# {request.task.name} on {plan.num_devices} devices",
        f"**{prediction_sentence(plan)}**",
        plan.warning and f"**Warning:** {plan.warning}",
        plan.costs_of and f"Costs of {plan.costs_of}. {unmeasured_sentence(plan)}",
        f"The plan: `{path}`",
        f"A page for a browser, by table and device: `{path.with_suffix('.html')}`",
        f"## Devices\n\n{markdown_table(devices)}",
        request.options.constraints and f"## Constraints\n\n```\n{request.options.constraints}\n```",
        moving and "\n".join(["## From the current plan\n\n```", *moving, "```"]),
        "\n".join(["## Notes\n", *(f"- {note}" for note in notes)]),
    ]
    return "\n\n".join(filter(None, parts))
