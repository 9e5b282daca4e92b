"""Prefect flows whose parameters are the fields of options; a deployment's parameters are the setting of its model."""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from pydantic import WithJsonSchema

from dreamshard.workloads import known_as
from flows.forms.options import Options
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
    """The model of a run, and its version or plan; a name that somebody gave it, unlike Prefect's two words, stays."""
    named, context = str(flow_run.name), FlowRunContext.get()
    if context is None or context.parameters is None or not re.fullmatch(r"[A-Za-z]+-[A-Za-z]+", named):
        return named
    given = context.parameters
    source = given.get("source") or given.get("tables")
    plan, versions = given.get("plan") if given.get("version", ...) is None else None, given.get("versions") or []
    parts = [
        given.get("model") or (source and model_name(known_as(source))),
        given.get("version"),
        given.get("dataset"),
    ]
    return " ".join(filter(None, [*parts, plan and f"plan {plan}", *versions])) or named
