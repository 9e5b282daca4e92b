"""Plans: of tables that a person names, as the command `place` makes them; and of a retrained model, for its trainer.

The last stage of a retraining places the model's present tables by the champion. Its plans have numbers; one is current.
"""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.events import emit_event
from prefect.runtime import deployment
from prefect.settings import get_current_settings

from dreamshard.files import digest
from dreamshard.workloads import known_as
from flows.forms.form import deployed
from flows.forms.options import PlaceOptions, RetrainOptions
from flows.placing import request
from flows.placing.plan_page import html_page
from flows.placing.request import Placed, moving_lines, prediction_sentence, unmeasured_sentence
from flows.reports.pages import markdown_table, publish
from flows.rules.promotion import gain_text
from flows.runtime.run_locks import store_lock
from flows.runtime.tasks import announce, report_progress, retried_task
from storage.filesystem import AnyPath, write_text
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import plans, report_store, trainings
from storage.run_records.plans import ModelPlan
from storage.run_records.trainings import model_name
from storage.store import Store, open_store

_SURE = 1.96 * 2**0.5 / 0.8
"""From the mean error of a prediction to 95 % of the gain between two, as if they erred independently of each other."""


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
    plan, is_csv = placed.plan, options.format == "csv"
    text, name = plan.to_csv() if is_csv else plan.to_json(), re.sub(r"[^\w.-]+", "-", placed.request.task.name)
    target = store.plans / f"{name}-{digest(text)}.{'csv' if is_csv else 'json'}"
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


@retried_task("plan model")
def plan_model(store: Store, training: str, options: RetrainOptions) -> dict[str, Any]:
    """Champion and the model's tables -> numbered plan, current if its gain pays for its moves and the policy agrees.

    Raises:
        ValueError: the constraints contradict each other or the tables.
        NoPlacementError: no placement was found that respects the constraints.
    """
    made_of = trainings.read(store, training)
    model, champion = made_of.model, registry.champion(store, made_of.registered_model)
    if options.plan == "off" or not made_of.is_fixed or champion is None:
        why = "there is no champion" if made_of.is_fixed else "the tables are a pool, not one model"
        return {"sentence": f"no plan was made: {'--plan is off' if options.plan == 'off' else why}"}
    with store_lock(store, f"plans-{model}"):
        before, notes = plans.current(store, model), list[str]()
        placed = _placed(store, made_of, champion, options, before, notes.append)
        if before and (placed.plan.tables, placed.plan.num_devices) == (before.tables, before.num_devices):
            sentence = f"plan {before.number} of {model} stays current: no gain is worth its moves"
            announce(sentence)
            return {"number": before.number, "is_current": True, "sentence": sentence}
        plan = ModelPlan(
            **dict(placed.plan),
            model=model,
            number=max(plans.numbers(store, model), default=0) + 1,
            made_at=datetime.now(UTC),
            version=champion.uri,
            dataset=made_of.dataset,
            evidence=_evidence(store, placed, champion, before),
            replaces=before.number if before else None,
        )
        plans.write(store, plan, plan.number)
    _show(store, placed, plan, Run(store, champion.run), notes)
    is_used = (options.plan or ("approve" if before else "auto")) == "auto"
    if is_used:
        use_plan(store, plan, "its gain pays for its moves" if before else "the first plan")
    elif deployment.id is not None:
        asked, name = {"model": model, "plan": str(plan.number), "ask": True}, f"plan {plan.number} of {model}"
        run_deployment(f"promote/{deployment.name}", parameters=asked, timeout=0, as_subflow=False, flow_run_name=name)
    what = "current" if is_used else f"proposed; `dreamshard promote --model {model} --plan {plan.number}` uses it"
    sentence = f"plan {plan.number} of {model} ({plan.evidence}) is {what}"
    announce(sentence)
    return {"number": plan.number, "is_current": is_used, "sentence": sentence, "path": str(plans.path(store, model))}


def use_plan(store: Store, plan: ModelPlan, why: str) -> None:
    """Make a plan the one that trainers read, and emit the event `dreamshard.plan.current`."""
    used = plan.model_copy(update={"current_since": datetime.now(UTC), "current_because": why})
    _emit("current", used, str(plans.write(store, used, "current")))


def replace_plan(store: Store, model: str, name: str, reason: str) -> dict[str, Any]:
    """Take a plan into use by its number, or the one before.

    Raises:
        ValueError: there is no such plan.
    """
    with store_lock(store, f"plans-{model}"):
        former, plan = plans.current(store, model), plans.read(store, model, name)
        replaced = former and former.number
        if former and replaced == plan.number:  # it is current already, and would roll back to itself
            replaced = former.replaces
        plan = plan.model_copy(update={"replaces": replaced})
        why = f"{os.environ.get('USER') or 'a person'}: {reason}"
        use_plan(store, plan, why)
    sentence = f"plan {plan.number} of {model} is current, by {why}"
    publish(f"**{sentence}**\n\n{plan.evidence}", f"plan-{model}", sentence)
    return {"model": model, "plan": plan.number, "sentence": sentence, "roll_back": plan.roll_back}


def _placed(
    store: Store,
    made_of: trainings.Training,
    champion: Version,
    options: RetrainOptions,
    before: ModelPlan | None,
    note: request.Note,
) -> Placed:
    """The tables that a training learned, placed by the champion for as many devices, and weighed against the plan before."""
    tasks, tables = made_of.recipe.tasks, store.lake.read_dataset(made_of.dataset)
    has_some = before and any((name, table.rows, table.dim) in tables.sizes for name, table in before.tables.items())
    asked = PlaceOptions(
        tables=made_of.source,
        model=made_of.model,
        placer=champion.uri,
        devices=tasks.num_devices,
        devices_per_host=tasks.devices_per_host,
        memory_gb=tasks.memory_bytes / 2**30,
        batch_size=made_of.testbed.batch_size,
        constraints=options.constraints,
        sharding=options.sharding,
    )
    return request.place(store, request.check(store, asked, note, plan=before if has_some else None), note)


def _evidence(store: Store, placed: Placed, champion: Version, before: ModelPlan | None) -> str:
    """What a plan is predicted to save of the one before, or what its version was measured to save of a heuristic."""
    key, kept, overall_ms = champion.tags.get("evaluation"), placed.kept, placed.plan.predicted.overall_ms
    report = report_store.load(store, key) if key else None
    measured = "was not evaluated by measurement"
    if report is not None:
        gain = gain_text(report.gain(report.candidate, report.reference))
        measured = f"has a measured gain of {gain} over {report.reference}"
    if before is None:
        return f"{champion} {measured}"
    changes = placed.request.current or "no table is the same"
    misfit = str(changes) and f"; plan {before.number} no longer loads ({changes}), so trainers need a newer one"
    if kept is None or overall_ms is None:
        why = placed.weighed.why_not_kept if placed.weighed else ""
        return f"{champion} {measured}{why and f'; plan {before.number} cannot be kept: {why}'}{misfit}"
    saved = 1 - overall_ms / kept.overall_ms
    error = report.placer(report.candidate).predicted_mape if report else None
    interval = (
        "" if error is None else f" ({100 * (saved - _SURE * error):+.1f} to {100 * (saved + _SURE * error):+.1f})"
    )
    return (
        f"predicted to save {100 * saved:+.1f} %{interval} of plan {before.number}'s cost with today's tables{misfit}"
    )


def _show(store: Store, placed: Placed, plan: ModelPlan, run: Run, notes: list[str]) -> None:
    """The plan's page in the store, in Prefect and on its version's run in MLflow, and the event `dreamshard.plan.made`."""
    page, file = html_page(placed), plans.path(store, plan.model, plan.number)
    write_text(file.with_suffix(".html"), page)
    for suffix, text in {"json": plan.to_json(), "html": page}.items():
        run.tracking.log_text(run.id, text, f"plans/{plan.number}.{suffix}")
    about = [plan.evidence, plan.roll_back and f"To roll back: `{plan.roll_back}`", *notes]
    publish(markdown_page(placed, file, [*filter(None, about)]), f"plan-{plan.model}", plan.evidence)
    _emit("made", plan, str(file))
    report_progress("plan", 1, 1, plan.evidence)


def _emit(what: str, plan: ModelPlan, file: str) -> None:
    """Tell the automations of Prefect's server, if there is one."""
    if FlowRunContext.get() is None and get_current_settings().api.url is None:
        return
    resource = {"prefect.resource.id": f"dreamshard.model.{plan.model}", "prefect.resource.name": plan.model}
    fields = plan.model_dump(include={"model", "version", "evidence"}) | {"plan": plan.number, "path": file}
    emit_event(f"dreamshard.plan.{what}", resource, payload=fields)
