"""Places the tables of a list or a model under constraints, as the command `place` does."""

import re
from typing import Any

from dreamshard.files import digest
from dreamshard.workloads import known_as
from flows.forms.form import deployed
from flows.forms.options import PlaceOptions
from flows.placing import request
from flows.placing.plan_page import html_page
from flows.placing.sentences import markdown_page, prediction_sentence
from flows.reports.pages import publish
from flows.runtime.progress import announce
from flows.runtime.retries import retried_task
from storage.filesystem import writing
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
    for path, content in ((html, html_page(placed)), (target, text)):
        with writing(path) as file:
            file.write(content.encode())
    sentence = prediction_sentence(plan)
    announce(f"{sentence}; wrote {target} and, to look at in a browser, {html}")
    publish(
        markdown_page(placed, str(target), str(html), notes), f"placed-{model_name(known_as(options.tables))}", sentence
    )
    return {
        "plan": str(target),
        "page": str(html),
        "placer": plan.placer,
        "overall_ms": plan.predicted.overall_ms,
        "costs_of": None if plan.costs_of is None else str(plan.costs_of),
        "warning": plan.warning,
        "moved_bytes": placed.moved_bytes,
    }
