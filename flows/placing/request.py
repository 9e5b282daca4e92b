"""A request to place tables: checked as a whole first, then placed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.placing.given_limits import constraints_of, memory_bytes_of
from flows.placing.placers import choose, is_without_costs

if TYPE_CHECKING:
    from dreamshard.hardware.accelerator import AcceleratorSpec
    from dreamshard.moving import InUse
    from dreamshard.placement import Placement
    from dreamshard.plan import Plan
    from dreamshard.tables import Optimizer, Precision
    from dreamshard.tasks import PlacementTask
    from dreamshard.workloads.model_tables import ModelTables
    from flows.placing.placers import Predictor
    from flows.placing.transition import Transition
    from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class PlaceRequest:
    """What a person asks for.

    Attributes:
        tables: a list's path, `model.py:make_model`, or a bundled list's name.
        num_devices: `D`.
        memory_gb: GiB for tables on each device; None for most of what the hardware has.
        hardware: a preset or a file; None where that is not said.
        placer: by name; None for the best.
        budget_ms: work of the search: as much as an idle core does in this time; None for the placer's own.
        constraints: path of a file, or its text.
        sharding: ways to shard; None for every way, or whole tables and columns by placers without costs.
        reserve_gb: of each device's room, kept free; None for the constraints'.
        cache: whether tables may be in host memory.
        current: path of the plan in use; None for none.
        current_tables: list of the tables when that plan was made; None for the same.
        steps_until_next: training steps over which a gain counts.
        move_gb_per_s: GB/s at which tables move.
        precision: of the weights; None for the model's.
        optimizer: None for the model's.
        batch_size: training samples per step of all devices; None for what was measured.
        devices_per_host: None for the hardware's.
        ranks: device type of TorchRec's ranks, `cuda` or `cpu`; None where the plan is not for TorchRec, or not yet.
    """

    tables: Path
    num_devices: int
    memory_gb: float | None = None
    hardware: str | None = None
    placer: str | None = None
    budget_ms: float | None = None
    constraints: Path | str | None = None
    sharding: str | None = None
    reserve_gb: float | None = None
    cache: bool = False
    current: Path | None = None
    current_tables: Path | None = None
    steps_until_next: float = 100_000
    move_gb_per_s: float = 10
    precision: "Precision | None" = None
    optimizer: "Optimizer | None" = None
    batch_size: int | None = None
    devices_per_host: int | None = None
    ranks: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request whose tables, constraints and plan in use have been read.

    Attributes:
        request: as given.
        spec: the hardware; None where it is not said.
        task: to be placed.
        model: the tables, and all that their list or model says of them.
        in_use: what the plan in use holds; None without one.
    """

    request: PlaceRequest
    spec: "AcceleratorSpec | None"
    task: "PlacementTask"
    model: "ModelTables"
    in_use: "InUse | None"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A request's plan.

    Attributes:
        plan: as it is written.
        placement: that the plan holds.
        predictor: of its costs; None where nothing can predict.
        predicted_by: what the predictor is called; empty without one.
        way: from the plan in use; None without one.
    """

    plan: "Plan"
    placement: "Placement"
    predictor: "Predictor | None"
    predicted_by: str
    way: "Transition | None"


def check(store: "Store", request: PlaceRequest, note: Callable[[str], None]) -> CheckedRequest:
    """Read what the request names.

    Args:
        store: with the tables that were ingested.
        request: to be checked.
        note: gets sentences for people.

    Raises:
        ValueError: something does not exist, or no placement can be legal; the message says what.
    """
    from dreamshard.hardware.accelerator import hardware as hardware_of
    from flows.placing.model_tables import read_model, task_of
    from flows.placing.plan_in_use import read_in_use

    spec = hardware_of(request.hardware) if request.hardware else None
    model = read_model(store, request.tables, note)
    default = "columns" if is_without_costs(request.placer) else "auto"
    task = task_of(
        model,
        request.num_devices,
        memory_bytes_of(request.memory_gb, spec, note),
        request.precision,
        request.optimizer,
        name=request.tables.name,
        devices_per_host=request.devices_per_host,
        batch_size=request.batch_size,
        constraints=constraints_of(
            request.constraints,
            model.tables.names,
            request.num_devices,
            sharding=request.sharding or default,
            reserve_gb=request.reserve_gb,
            cache=request.cache,
        ),
        ranks=request.ranks,
        note=note,
    )
    rows_before = None
    if request.current_tables is not None:
        earlier = read_model(store, request.current_tables, note).tables
        rows_before = dict(zip(earlier.names, earlier.rows.tolist(), strict=True))
    in_use = read_in_use(request.current, task, rows_before, note) if request.current else None
    return CheckedRequest(request=request, spec=spec, task=task, model=model, in_use=in_use)


def place(store: "Store", checked: CheckedRequest, note: Callable[[str], None]) -> Placed:
    """Choose the placer, place, and weigh the plan against the one in use.

    Args:
        store: with the registry.
        checked: what to place.
        note: gets sentences for people.

    Raises:
        ValueError: there is no such placer.
        NoPlacementError: none was found that respects the constraints.
    """
    from dreamshard.plan import make_plan, with_origin
    from dreamshard.search import DreamShardPlacer
    from flows.placing.transition import transition

    request, task, spec, in_use = checked.request, checked.task, checked.spec, checked.in_use
    chosen = choose(store, request.placer, task, spec, request.hardware or "", note=note)
    if chosen.why:
        note(chosen.why)
    per_host = request.devices_per_host or (spec.devices_per_node if spec else None)
    placement = chosen.place(task, request.budget_ms).on_hosts_of(per_host)
    oracle, way = chosen.predictor, None
    if in_use is not None:
        way = transition(task, in_use, placement, oracle, request.steps_until_next, request.move_gb_per_s)
        placement = way.placement
    plan = make_plan(task, placement, chosen.name, oracle.predict(task, placement) if oracle else None)
    if oracle is not None:
        knows = isinstance(oracle, DreamShardPlacer) and oracle.cost_network.knows_topology(task)
        hardware = spec.name if spec else None
        plan = with_origin(
            plan, task, chosen.costs_of, hardware=hardware, called=request.hardware, knows_topology=knows
        )
    plan = replace(plan, warning="; ".join(filter(None, (plan.warning, chosen.caveat))))
    if way is not None:
        plan = replace(plan, moves=tuple(step.to_json() for step in way.steps))
    predicted_by = "" if oracle is None else chosen.predicted_by or chosen.name
    return Placed(plan=plan, placement=placement, predictor=oracle, predicted_by=predicted_by, way=way)
