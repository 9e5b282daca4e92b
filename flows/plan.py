"""The last stage of a retraining: the model's present tables, placed by the champion, as a numbered plan for its trainer."""

import os
from datetime import UTC, datetime
from typing import Any

from prefect.deployments import run_deployment
from prefect.events import emit_event
from prefect.runtime import deployment

from dreamshard.plan import Plan
from dreamshard.tables import Tables
from flows.forms.options import PlaceOptions, RetrainOptions
from flows.placing import request
from flows.placing.plan_page import html_page
from flows.placing.request import Placed
from flows.placing.sentences import markdown_page, prediction_sentence
from flows.reports.pages import publish
from flows.rules.promotion import gain_text
from flows.runtime.progress import announce, report_progress
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import store_lock
from storage.filesystem import writing
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.mlflow_store.runs import Run
from storage.run_records import plans, report_store, trainings
from storage.run_records.plans import ModelPlan
from storage.store import Store

_SURE = 1.96 * 2**0.5 / 0.8
"""From the mean error of a prediction to 95 % of the gain between two, as if they erred independently of each other."""


@retried_task("plan model")
def plan_model(store: Store, training: str, options: RetrainOptions) -> dict[str, Any]:
    """Champion and the model's tables -> numbered plan, in use if its gain pays for its moves and the policy agrees.

    Raises:
        ValueError: the constraints contradict each other or the tables.
        NoPlacementError: no placement was found that respects the constraints.
    """
    made_of = trainings.read(store, training)
    model, champion = made_of.model, registry.champion(store, made_of.registered_model)
    if options.plan == "off" or not made_of.is_fixed or champion is None:
        return {"sentence": "no plan was made: " + _why_none(options, made_of.is_fixed)}
    notes: list[str] = []
    with store_lock(store, f"plans-{model}"):
        before, tables = plans.current(store, model), store.lake.read_dataset(made_of.dataset)
        held = before if before and _shares_tables(before, tables) else None
        tasks = made_of.recipe.tasks
        asked = PlaceOptions(
            tables=made_of.source,
            model=model,
            placer=champion.uri,
            devices=tasks.num_devices,
            devices_per_host=tasks.devices_per_host,
            memory_gb=tasks.memory_bytes / 2**30,
            precision=None if tasks.precision == "fp32" else tasks.precision,
            optimizer=None if tasks.optimizer == "sgd" else tasks.optimizer,
            batch_size=made_of.testbed.batch_size,
            constraints=options.constraints,
            sharding=options.sharding,
        )
        placed = request.place(store, request.check(store, asked, notes.append, plan=held), notes.append)
        if before is not None and (placed.plan.tables, placed.plan.num_devices) == (before.tables, before.num_devices):
            sentence = f"plan {before.number} of {model} stays in use: no gain is worth its moves"
            announce(sentence)
            return {"number": before.number, "in_use": True, "sentence": sentence}
        plan = _numbered(store, placed, champion, made_of.dataset, before)
        plans.write(store, plan, plan.number)
    policy = options.plan or ("approve" if before else "auto")
    _show(store, placed, plan, champion, notes)
    if policy == "auto":
        use_plan(store, plan, "its gain pays for its moves" if before else "the first plan")
    elif deployment.id is not None:
        asked_for = {"model": model, "plan": str(plan.number), "ask": True}
        name = f"plan {plan.number} of {model}"
        run_deployment(
            f"promote/{deployment.name}", parameters=asked_for, timeout=0, as_subflow=False, flow_run_name=name
        )
    command = f"; `dreamshard promote --model {model} --plan {plan.number}` takes it into use"
    sentence = f"plan {plan.number} of {model} is {'in use' if policy == 'auto' else 'proposed'}: {plan.evidence}"
    announce(sentence + ("" if policy == "auto" else command))
    return {
        "number": plan.number,
        "in_use": policy == "auto",
        "sentence": sentence,
        "path": str(plans.path(store, model)),
        "roll_back": plan.roll_back,
        "moved_bytes": placed.moved_bytes,
    }


def use_plan(store: Store, plan: ModelPlan, why: str) -> ModelPlan:
    """Make a plan the one that trainers read, and emit the event `dreamshard.plan.in-use`; returns it as it is there."""
    used = plan.model_copy(update={"in_use_since": datetime.now(UTC), "in_use_because": why})
    file = plans.write(store, used, "current")
    _emit("in-use", used, str(file))
    return used


def replace_plan(store: Store, model: str, name: str, reason: str) -> dict[str, Any]:
    """Take a plan into use by its number, or the one before.

    Raises:
        ValueError: there is no such plan.
    """
    with store_lock(store, f"plans-{model}"):
        former, plan = plans.current(store, model), plans.read(store, model, name)
        by = os.environ.get("USER") or "a person"
        replaced = former.number if former else None
        plan = plan.model_copy(update={"replaces": replaced, "roll_back": _roll_back(model, replaced)})
        used = use_plan(store, plan, f"{by}: {reason}")
    sentence = f"plan {plan.number} of {model} is in use, by {used.in_use_because}"
    publish(f"**{sentence}**\n\n{plan.evidence}", f"plan-{model}", sentence)
    path = str(plans.path(store, model))
    return {"model": model, "plan": plan.number, "path": path, "sentence": sentence, "roll_back": plan.roll_back}


def _why_none(options: RetrainOptions, is_fixed: bool) -> str:
    if options.plan == "off":
        return "as requested (--plan off)"
    return "there is no champion yet" if is_fixed else "the tables are a pool, not one model (--mode fixed)"


def _shares_tables(plan: Plan, tables: Tables) -> bool:
    """Whether a plan has one of the tables in its size, so that there are moves to weigh."""
    sizes = zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    return any((own := plan.tables.get(name)) and (own.rows, own.dim) == (rows, dim) for name, rows, dim in sizes)


def _numbered(store: Store, placed: Placed, champion: Version, dataset: str, before: ModelPlan | None) -> ModelPlan:
    replaced, model = before.number if before else None, champion.model
    return ModelPlan(
        **dict(placed.plan),
        model=model,
        number=max(plans.numbers(store, model), default=0) + 1,
        made_at=datetime.now(UTC),
        version=champion.uri,
        dataset=dataset,
        evidence=_evidence(store, placed, champion, before),
        replaces=replaced,
        roll_back=_roll_back(model, replaced),
    )


def _roll_back(model: str, replaced: int | None) -> str:
    return "" if replaced is None else f"dreamshard promote --model {model} --plan {replaced}"


def _evidence(store: Store, placed: Placed, champion: Version, before: ModelPlan | None) -> str:
    """Why a plan may be used: what it is predicted to save of the one in use, or what its version was measured to save."""
    key = champion.tags.get("evaluation")
    report = report_store.load(store, key) if key else None
    kept, cost_ms = placed.kept, placed.plan.predicted.overall_ms
    if before is None or cost_ms is None:
        if report is None:
            return f"{champion} was not evaluated by measurement"
        gain = gain_text(report.gain(report.candidate, report.reference))
        return f"{champion} saves {gain} of {report.reference}, measured with a 95 % interval"
    if kept is None:
        why = placed.weighed.why_not_kept if placed.weighed else "it has none of these tables"
        return f"plan {before.number} cannot be kept: {why}"
    saved, error = 1 - cost_ms / kept.overall_ms, report.placer(report.candidate).predicted_mape if report else None
    interval = (
        "" if error is None else f" ({100 * (saved - _SURE * error):+.1f} to {100 * (saved + _SURE * error):+.1f})"
    )
    tables = placed.request.in_use
    changed = len(tables.new) + len(tables.changed) if tables else 0
    note = f"; {changed} tables are new or of another size" if changed else ""
    return f"predicted to save {100 * saved:+.1f} %{interval} of plan {before.number} with today's tables{note}"


def _show(store: Store, placed: Placed, plan: ModelPlan, champion: Version, notes: list[str]) -> None:
    """The plan's page in the store, in Prefect and on its version's run in MLflow, and the event that it was made."""
    file, run = plans.path(store, plan.model, plan.number), Run(store, champion.run)
    page = html_page(placed)
    html = file.with_suffix(".html")
    with writing(html) as opened:
        opened.write(page.encode())
    for name, text in {f"{plan.number}.json": plan.to_json(), f"{plan.number}.html": page}.items():
        run.tracking.log_text(run.id, text, f"plans/{name}")
    about = [plan.evidence, f"Placed by {champion}.", plan.roll_back and f"To roll back: `{plan.roll_back}`"]
    markdown = markdown_page(placed, str(file), str(html), [*filter(None, about), *notes])
    publish(markdown, f"plan-{plan.model}", prediction_sentence(plan))
    _emit("made", plan, str(file))
    report_progress("plan", 1, 1, plan.evidence)


def _emit(what: str, plan: ModelPlan, file: str) -> None:
    """Tell Prefect's automations."""
    resource = {"prefect.resource.id": f"dreamshard.model.{plan.model}", "prefect.resource.name": plan.model}
    payload = {"model": plan.model, "plan": plan.number, "version": plan.version, "path": file}
    emit_event(f"dreamshard.plan.{what}", resource, payload=payload | {"evidence": plan.evidence})
