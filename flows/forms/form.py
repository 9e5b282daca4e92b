"""Prefect flows whose parameters are the fields of options, and the complete configuration that options stand for.

A deployment's parameters are the setting of its model.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar, get_type_hints

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from pydantic import WithJsonSchema

from dreamshard.recipes import Recipe, recipe, with_overrides
from dreamshard.training import with_algorithm
from dreamshard.workloads import is_function, known_as
from flows.forms.options import Options, RecipeOptions
from storage.mlflow_store import runs
from storage.run_records.trainings import model_name
from storage.settings import Settings

Chosen = TypeVar("Chosen", bound=Options)
Result = TypeVar("Result")


def deployed(body: Callable[[Chosen], Result]) -> Flow[..., Result]:
    """Make a Prefect flow of a function of options, with a parameter for each of their fields."""
    options: type[Chosen] = get_type_hints(body)["options"]

    def with_parameters(**parameters: Any) -> Result:
        return body(options(**parameters))

    with_parameters.__signature__ = inspect.Signature(_parameters(options))  # type: ignore[attr-defined]  # PEP 362
    with_parameters.__name__, with_parameters.__doc__ = body.__name__, body.__doc__
    return Flow(
        with_parameters,
        flow_run_name=_subject,
        persist_result=True,
        result_serializer="json",
        on_cancellation=[_end_runs],
        on_crashed=[_end_runs],
    )


def _parameters(options: type[Options]) -> list[inspect.Parameter]:
    """Each field with its type and bounds, drawn as `Options` say."""
    drawn = options.model_json_schema()["properties"]
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else field.default,
            annotation=Annotated[field.annotation, *field.metadata, WithJsonSchema(drawn[name])],
        )
        for name, field in options.model_fields.items()
    ]


def _end_runs(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Mark what a cancelled or crashed flow run has left open in MLflow as KILLED."""
    why = f"{flow.name} was {state.name}: {state.message or ''}"
    runs.end_killed(Settings.from_environment(), str(flow_run.id), why)


def _subject() -> str:
    """The model of a run, and its versions or dataset; a name that somebody gave it, unlike Prefect's two words, stays."""
    named, context = str(flow_run.name), FlowRunContext.get()
    if context is None or context.parameters is None or not re.fullmatch(r"[A-Za-z]+-[A-Za-z]+", named):
        return named
    given = context.parameters
    source = given.get("source") or given.get("tables")
    model = given.get("model") or (source and model_name(known_as(source)))
    others = (given.get("version"), given.get("dataset"), *(given.get("versions") or ()))
    return " ".join(filter(None, (model, *others))) or named


def configure(options: RecipeOptions, source: str | None = None) -> Recipe:
    """The recipe of the options; every other option that is filled in replaces the recipe's own value.

    Sizes that the options leave open are derived later if the tables are not the recipe's own (`dreamshard.recipes.sized`).

    Args:
        source: origin of tables that have been ingested, where the options name none.

    Raises:
        ValueError: there is no such recipe, and the message lists the existing ones; or options exclude each other.
    """
    filled = options.model_dump(exclude_none=True)

    def of(*names: str) -> dict[str, Any]:
        return {name: filled[name] for name in names if name in filled}

    if filled.get("mode") == "fixed" and "tables_per_task" in filled:
        raise ValueError("a fixed model is placed as a whole; leave out --tables-per-task, or give --mode pool")
    named = filled.get("source", source)
    known = None if named is None else known_as(named)
    if "batches" in filled and not (named and is_function(named)):
        raise ValueError(f"--batches {filled['batches']} needs a model; give model.py:make_model as the source")
    base = with_overrides(recipe(options.recipe), testbed=filled.get("testbed"), source=known)
    tasks = of("devices_per_host", "tables_per_task", "mode")
    if "devices" in filled:
        tasks["num_devices"] = filled["devices"]
    for name, size in (("memory_gb", "memory_bytes"), ("reserve_gb", "reserve_bytes")):
        if name in filled:
            tasks[size] = round(filled[name] * 2**30)
    training = of("iterations", "placements_per_iteration")
    if "iterations" in filled:
        training["warm_iterations"] = filled["iterations"]
    workload = of("batch_size")
    if "batches" in filled:
        workload["batches"] = known_as(filled["batches"])
    algorithm = filled.get("algorithm", base.training.algorithm)
    return replace(
        base,
        model=filled.get("model", ""),
        tasks=replace(base.tasks, **tasks),
        training=replace(with_algorithm(base.training, algorithm), **training),
        exchange_devices=tuple(sorted({*filled.get("exchange_devices", ())})),
        workload=replace(base.workload, **workload),
        derived=tuple(name for name in base.derived if name not in tasks.keys() | workload.keys()),
    )
