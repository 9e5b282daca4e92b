"""The placer as MLflow serves it: this file is the model's code (models-from-code), its weights are safetensors.

It turns a request into a placement task and the placement into an answer. It imports only `dreamshard`, a copy of which is
stored with the version, so a machine without the project can serve it.

A request `{"inputs": [...]}` has one object per wanted placement; the answer `{"predictions": [...]}` has a plan for each,
in the same order and in the format of `dreamshard place --format json`:

    {"inputs": [{"num_devices": 2, "memory_gb": 1.0, "tables": [
        {"name": "users", "rows": 1000000, "dim": 64, "pooling_factor": 1.0},
        {"name": "items", "rows": 200000, "dim": 64, "pooling_factor": 12.5}]}]}

    {"predictions": [{"num_devices": 2, "placer": "dreamshard",
        "predicted": {"overall_ms": 2.1, "devices": [
            {"memory_bytes": 51200000, "tables": 1, "forward_compute_ms": 0.9, ...}, ...]},
        "costs_of": {"hardware": "NVIDIA H100 x8", "num_devices": 8, "precision": "fp32", ...},
        "differs_in": ["num_devices"], "warning": "the costs are of NVIDIA H100 x8 (8 devices, ...",
        "shards": [{"table": "users", "device": 1, "column_start": 0, "column_end": 64}, ...]}]}

`PlacementRequest` and `RequestedTable` define the fields. A wrong request is answered with 400 and a message that names the
field. MLflow's server itself checks nothing but `inputs`.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import pydantic
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel, Field, TypeAdapter

from dreamshard.plan import make_plan, with_origin
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Optimizer, Precision
from dreamshard.tasks import PlacementTask
from dreamshard.training import load_placer
from dreamshard.workloads import ListedTable, fill_missing_columns, read_tables
from dreamshard.workloads.table_list import check_records

_MAX_ERRORS = 5  # errors that one answer lists
_LONGEST_SHOWN = 60  # characters of a name or value


class RequestedTable(BaseModel, extra="forbid", strict=True):
    """One table of a request; missing fields take the mean of the training tables.

    Attributes:
        name: unique in the request.
        rows: hash size, at least 1.
        dim: embedding dimension, a multiple of 4.
        pooling_factor: mean lookups per sample.
        lookups: number of lookups in a batch.
        unique_rows: number of distinct rows looked up in a batch.
        bins: 17 shares of the distinct rows by access count.
    """

    name: str
    rows: Annotated[int, Field(ge=1, le=2**36)]  # with the limits below the bytes of all tables stay below 2^63
    dim: Annotated[int, Field(ge=4, le=2**12, multiple_of=4)]
    pooling_factor: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    lookups: Annotated[int, Field(ge=0, le=2**40)] | None = None
    unique_rows: Annotated[int, Field(ge=0, le=2**36)] | None = None
    bins: Annotated[list[float], Field(min_length=17, max_length=17)] | None = None


class PlacementRequest(BaseModel, extra="forbid", strict=True):
    """One wanted placement.

    Attributes:
        num_devices: number of devices.
        memory_gb: GiB for tables on each device.
        devices_per_host: devices that share a host; None for as many as the hardware has.
        tables: at least one table.
        precision: of the weights.
        optimizer: whose state takes memory beside the weights.
        batch_size: training samples per step; None for as many as the placer's costs were measured with.
        hardware: name of a preset that the plan is for; the plan warns where its costs are of something else.
        budget_ms: work of the search: as much as an idle core does in this time; None for the placer's own.
    """

    num_devices: Annotated[int, Field(ge=1, le=4096)]
    memory_gb: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]
    tables: Annotated[list[RequestedTable], Field(min_length=1, max_length=4096)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    devices_per_host: Annotated[int, Field(ge=1, le=4096)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    hardware: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    budget_ms: Annotated[float, Field(ge=0, le=30_000, allow_inf_nan=False)] | None = None


class PlacerModel(PythonModel):
    """A trained placer behind MLflow's one method."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the placer, and the pool of training tables."""
        self.placer = load_placer(Path(context.artifacts["placer"]))
        pool = context.artifacts.get("pool")
        self.pool = read_tables(pool) if pool else None

    def predict(
        self, context: PythonModelContext, model_input: list[dict[str, Any]], params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Place the tables of each object of a request.

        Args:
            model_input: objects as `PlacementRequest` describes them.

        Returns:
            A plan for each, as the JSON of `dreamshard.plan.Plan`.

        Raises:
            MlflowException: a field is wrong or no placement fits; the server answers 400.
        """
        if not model_input:
            raise MlflowException.invalid_parameter_value("inputs is empty; give one object per placement wanted")
        try:
            requests = _parse(model_input)
            tasks = [self._task(request, f"inputs[{i}]") for i, request in enumerate(requests)]
            return [self._plan(task, request) for task, request in zip(tasks, requests, strict=True)]
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _task(self, request: PlacementRequest, where: str) -> PlacementTask:
        records = [(f"{where}.tables[{t}]", table.model_dump()) for t, table in enumerate(request.tables)]
        tables = fill_missing_columns(check_records(records, ListedTable), self.pool)
        memory_bytes = round(request.memory_gb * 2**30)
        return PlacementTask(
            tables,
            request.num_devices,
            memory_bytes,
            request.precision,
            request.optimizer,
            where,
            request.devices_per_host,
            request.batch_size,
        )

    def _plan(self, task: PlacementTask, request: PlacementRequest) -> dict[str, Any]:
        placer = self.placer
        if isinstance(placer, DreamShardPlacer):
            placement = placer.place(task, request.budget_ms)
            plan = with_origin(
                make_plan(task, placement, placer.name, placer.predict(task, placement)),
                task,
                placer.cost_network.measured_on,
                hardware=request.hardware,
                knows_topology=placer.cost_network.knows_topology(task),
            )
        else:  # AutoShard, which does not search, and predicts compute only
            plan = make_plan(task, placer.place(task), placer.name, None)
        content: dict[str, Any] = json.loads(plan.to_json())
        return content


_REQUESTS = TypeAdapter(list[PlacementRequest])


def _parse(content: list[dict[str, Any]]) -> list[PlacementRequest]:
    """Validate the objects.

    Raises:
        ValueError: fields are missing, unknown, of a wrong type or out of range; the message names them.
    """
    try:
        return _REQUESTS.validate_python(content)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)
        listed = [f"inputs{_path(entry['loc'])}: {entry['msg']}{_got(entry)}" for entry in errors[:_MAX_ERRORS]]
        more = [f"and {len(errors) - _MAX_ERRORS} more"] if len(errors) > _MAX_ERRORS else []
        raise ValueError("; ".join([*listed, *more])) from error


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_brief(part)}" for part in location)


def _got(error: Any) -> str:
    return "" if error["type"] == "missing" else f", got {_brief(repr(error['input']))}"


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


set_model(PlacerModel())
