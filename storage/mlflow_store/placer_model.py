"""The placer as MLflow serves it: this file is the model's code (models-from-code), its weights are safetensors.

It turns a request into a placement task and the placement into an answer. It imports only `dreamshard`, a copy of which is
stored with the version, so a machine without the project can serve it.

A request `{"inputs": [...]}` has one object per wanted placement; the answer `{"predictions": [...]}` has a plan for each,
in the same order and in the format of `dreamshard place --format json`:

    {"inputs": [{"num_devices": 2, "memory_gb": 1.0, "tables": [
        {"name": "users", "rows": 1000000, "dim": 64, "pooling_factor": 1.0},
        {"name": "items", "rows": 200000, "dim": 64, "pooling_factor": 12.5}]}]}

MLflow checks requests by the types below, which are the version's signature, and answers 400 if a field is wrong.
"""

from pathlib import Path
from typing import Any, get_args

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel, Field

from dreamshard.planning import make_plan
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Optimizer, Precision, padded_dim
from dreamshard.tasks import PlacementTask
from dreamshard.training import load_placer
from dreamshard.workloads import check_records, list_tables, model_tables

_PRECISIONS, _OPTIMIZERS = (
    f"^({'|'.join(get_args(kind))})$" for kind in (Precision, Optimizer)
)  # MLflow knows no Literal


class RequestedTable(BaseModel, extra="forbid"):
    """One table of a request, as `dreamshard.tables.ModelTable` checks it.

    Attributes:
        lookups: number of lookups in a batch; if this, `unique_rows` or `bins` are missing, they are those of the training
            tables if all tables of the request are among them, otherwise a Zipf law's.
        bins: 17 shares of the distinct rows by access count.
    """

    name: str
    rows: int
    dim: int
    pooling_factor: float
    lookups: int | None = None
    unique_rows: int | None = None
    bins: list[float] | None = None


class PlacementRequest(BaseModel, extra="forbid"):
    """One wanted placement.

    Attributes:
        num_devices: number of devices.
        memory_gb: GiB for tables on each device.
        tables: at least one table.
        precision: of the weights: fp32, fp16, bf16 or int8.
        optimizer: its state takes memory besides the weights.
        devices_per_host: devices that share a host; None for as many as the hardware has.
        batch_size: training samples per step; None for as many as the placer's costs were measured with.
        hardware: name of a preset that the plan is for; the plan warns if its costs are of something else.
        budget_ms: work of the search: as much as an idle core does in this time; None for the placer's own.
    """

    num_devices: int = Field(ge=1, le=4096)
    memory_gb: float = Field(gt=0, le=100_000, allow_inf_nan=False)
    tables: list[RequestedTable] = Field(min_length=1, max_length=4096)
    precision: str = Field("fp32", pattern=_PRECISIONS)
    optimizer: str = Field("sgd", pattern=_OPTIMIZERS)
    devices_per_host: int | None = Field(None, ge=1, le=4096)
    batch_size: int | None = Field(None, ge=1, le=2**31 - 1)
    hardware: str | None = Field(None, max_length=100)
    budget_ms: float | None = Field(None, ge=0, le=30_000, allow_inf_nan=False)


class Setting(BaseModel):
    """The setting that costs were measured in, as `dreamshard.costs.MeasuredOn`."""

    precision: str
    optimizer: str
    batch_size: int
    testbed: str
    hardware: str
    num_devices: int
    devices_per_host: int | None = None
    versions: dict[str, str]


class PlacedTable(BaseModel):
    """How a table is sharded, as `dreamshard.plan.PlannedTable`."""

    sharding_type: str
    columns: list[list[int]]
    where: list[int]
    cached_share: float | None = None
    rows: int
    dim: int


class Costs(BaseModel):
    """Predicted cost, as `dreamshard.plan.Predicted`."""

    overall_ms: float | None = None
    devices: list[dict[str, float]]


class PlacedTables(BaseModel):
    """A plan, as `dreamshard.plan.Plan`, in types that MLflow knows."""

    num_devices: int
    devices_per_host: int | None = None
    placer: str
    predicted: Costs
    costs_of: Setting | None = None
    differs_in: list[str]
    warning: str
    tables: dict[str, PlacedTable]
    not_measured: list[str]


class PlacerModel(PythonModel):
    """A trained placer behind MLflow's one method."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the placer, and the pool of training tables."""
        self.placer = load_placer(Path(context.artifacts["placer"]))
        pool = context.artifacts.get("pool")
        self.pool = model_tables(list_tables(pool)).tables if pool else None

    def predict(  # type: ignore[override]  # MLflow lets it leave out the context
        self, model_input: list[PlacementRequest], params: dict[str, Any] | None = None
    ) -> list[PlacedTables]:
        """Place the tables of each request; returns a plan for each.

        Raises:
            MlflowException: a table is wrong or no placement fits; the server answers 400.
        """
        try:
            return [self._plan(self._task(request, f"inputs[{i}]"), request) for i, request in enumerate(model_input)]
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _task(self, request: PlacementRequest, where: str) -> PlacementTask:
        listed = check_records({f"{where}.tables[{t}]": table.model_dump() for t, table in enumerate(request.tables)})
        sizes, known = {(table.name, table.rows, padded_dim(table.dim)) for table in listed}, self.pool
        if known and not sizes <= {*known.sizes}:
            known = None
        return PlacementTask(
            model_tables(listed, defaults=known).tables,
            request.num_devices,
            round(request.memory_gb * 2**30),
            request.precision,  # type: ignore[arg-type]  # its pattern
            request.optimizer,  # type: ignore[arg-type]
            where,
            request.devices_per_host,
            request.batch_size,
        )

    def _plan(self, task: PlacementTask, request: PlacementRequest) -> PlacedTables:
        placer = self.placer
        if isinstance(placer, DreamShardPlacer):
            placement = placer.place(task, request.budget_ms)
            plan = make_plan(task, placement, placer.name, placer, hardware=request.hardware)
        else:  # AutoShard, which does not search, and predicts compute only
            plan = make_plan(task, placer.place(task), placer.name)
        return PlacedTables.model_validate(plan.model_dump(mode="json"))


set_model(PlacerModel())
