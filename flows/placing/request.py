"""A request to place tables: checked as a whole first, then placed; and its plan, with the moves to it, in sentences."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dreamshard.constraints import UNCONSTRAINED, Constraints, parse_constraints, parse_sharding
from dreamshard.explanation import HOT_SHARE, uneven_ms
from dreamshard.files import counted, gib, reading
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec, hardware as hardware_of
from dreamshard.moving import Current, MovePrice, Point, Step, Weighed, moved_bytes, rename_devices, steps, weigh
from dreamshard.plan import Plan, parse_plan, read_plan
from dreamshard.planning import legal_placement, make_plan
from dreamshard.search import SearchingPlacer
from dreamshard.tables import SHARDING_TYPES, Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, Shards, violation
from dreamshard.testbeds.base import TABLES_SHARE
from dreamshard.workloads import ModelTables, known_as
from flows.forms.options import PlaceOptions
from flows.placing.placers import choose
from flows.runtime.sources import read_model, runnable, torchrec_bridge
from storage.mlflow_store import registry
from storage.run_records.trainings import model_name, names_version
from storage.store import Store

Note = Callable[[str], None]
"""Gets sentences for people."""


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request whose tables, constraints and current plan have been read.

    Attributes:
        options: as given.
        spec: the hardware; None if it is not said.
        task: to be placed.
        plan: the current one; None without it.
        current: its placement of the task's tables.
        model: whose versions may place by name alone; empty if there are none of it.
    """

    options: PlaceOptions
    spec: AcceleratorSpec | None
    task: PlacementTask
    plan: Plan | None
    current: Current | None
    model: str

    @property
    def price(self) -> MovePrice:
        """The price of moving from the current plan."""
        options = self.options
        return MovePrice(steps_until_next=options.steps_until_next, bytes_per_s=1e9 * options.move_gb_per_s)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A request's plan.

    Attributes:
        request: that was placed.
        plan: as it is written.
        placement: that the plan holds.
        predictor: of its costs; None if nothing can predict.
        predicted_by: name of the predictor; empty without one.
        weighed: against keeping the current plan; None without one, or if no costs are predicted.
        steps: from the current plan.
    """

    request: CheckedRequest
    plan: Plan
    placement: Placement
    predictor: SearchingPlacer | None
    predicted_by: str
    weighed: Weighed | None
    steps: tuple[Step, ...]

    @property
    def kept(self) -> Point | None:
        """The current plan with today's tables; None if it cannot be kept, or no costs are predicted."""
        return None if self.weighed is None else self.weighed.kept

    @property
    def moved_tables(self) -> set[str]:
        """Tables of which something moves between devices."""
        return {step.table for step in self.steps if step.source is not None}

    @property
    def moved_bytes(self) -> int:
        """Of all moves between devices."""
        return moved_bytes(self.steps)


def check(
    store: Store,
    options: PlaceOptions,
    note: Note,
    *,
    model: ModelTables | None = None,
    plan: Plan | None = None,
) -> CheckedRequest:
    """Read what the options name. Sizes are by default those of the current plan, then of the version.

    Args:
        store: with the registry.
        options: as given.
        note: gets sentences for people.
        model: the tables, if they have been read.
        plan: the current one, if the options name none.

    Raises:
        ValueError: something does not exist or is not known, or no placement can be legal.
    """
    spec = hardware_of(options.hardware) if options.hardware else None
    name = model_name(known_as(options.tables))
    is_known = store.lake.newest_dataset(name) or any(version.model == name for version in registry.versions(store))
    of_model = options.model or (name if is_known else "")
    usual = {} if options.hardware else _sizes_of_version(store, options.placer or "champion", of_model)
    if (memory_gb := options.memory_gb or usual.get("memory_gb")) is None:
        if spec is None:
            raise ValueError("the memory per device is unknown; give --hardware or --memory-gb")
        memory_gb = TABLES_SHARE * spec.memory_bytes / 2**30
        note(
            f"{memory_gb:.4g} GiB per device for tables, {TABLES_SHARE:.1%} of {spec.name}'s memory (--memory-gb changes it)"
        )
    elif spec is not None and memory_gb * 2**30 > spec.memory_bytes:
        note(f"--memory-gb {memory_gb:g} is more than the {gib(spec.memory_bytes)} of {spec.name}")
    model = model or read_model(store, options.tables, note, of_model)
    if options.current:
        plan = read_any_plan(Path(options.current), model.tables, options.devices_per_host, options.devices)
    num_devices = options.devices or (plan.num_devices if plan else usual.get("devices"))
    if num_devices is None:
        raise ValueError("the number of devices is unknown; give --devices")
    per_host = options.devices_per_host or (plan.devices_per_host if plan else None)
    if num_devices == usual.get("devices"):
        per_host = per_host or usual.get("devices_per_host")
    constraints = _constraints(options, model.tables.names, num_devices, plan)
    constraints = runnable(model, constraints, options.device_type if options.format == "torchrec" else None, note)
    task = model.task(
        num_devices,
        round(memory_gb * 2**30),
        precision=options.precision,
        optimizer=options.optimizer,
        name=Path(options.tables).name,
        devices_per_host=per_host,
        batch_size=options.batch_size,
        constraints=constraints,
    )
    current = None if plan is None else Current.of(plan, task)
    if current and (problem := violation(current.task, current.placement)):
        note(f"of the current plan, {problem}")
    return CheckedRequest(options=options, spec=spec, task=task, plan=plan, current=current, model=of_model)


def place(store: Store, request: CheckedRequest, note: Note) -> Placed:
    """Choose the placer, place, and weigh the plan against the current one.

    Raises:
        ValueError: there is no such placer.
        NoPlacementError: none was found that respects the constraints.
    """
    options, task, spec, current = request.options, request.task, request.spec, request.current
    chosen = choose(store, options.placer, task, spec, options.hardware or "", model=request.model, note=note)
    if chosen.why:
        note(chosen.why)
    per_host = task.devices_per_host or (spec.devices_per_host if spec else None)
    placement = legal_placement(task, chosen.placer, options.budget_ms).on_hosts_of(per_host)
    _check_host_memory(task, placement, spec, note)
    oracle, weighed = chosen.predictor, None
    moves: tuple[Step, ...] = ()
    if current is not None:
        if oracle is not None:
            weighed = weigh(task, current, placement, oracle, request.price)
        placement = weighed.chosen.placement if weighed else rename_devices(task, placement, current.shards)
        moves = steps(task, current.shards, placement)
    if oracle is not None and (cost_ms := uneven_ms(task, placement, oracle)) is not None:
        note(
            f"the cost assumes that lookups spread evenly over row shards; with {HOT_SHARE:.0%} on one device a step would "
            f"take {cost_ms:.3f} ms: ingest lookups, or give block_share (docs/own-tables.md)"
        )
    plan = make_plan(
        task, placement, chosen.name, oracle, hardware=spec.name if spec else None, called=options.hardware
    )
    warning = "; ".join(filter(None, (plan.warning, chosen.caveat)))
    return Placed(
        request=request,
        plan=plan.model_copy(update={"warning": warning, "moves": tuple(map(asdict, moves))}),
        placement=placement,
        predictor=oracle,
        predicted_by=chosen.predicted_by or chosen.name,
        weighed=weighed,
        steps=moves,
    )


def _check_host_memory(task: PlacementTask, placement: Placement, spec: AcceleratorSpec | None, note: Note) -> None:
    """Say how much memory of hosts cached tables need; raises a NoPlacementError if the hardware has less."""
    shards = Shards.of(task, placement)
    if not shards.in_host.any():
        return
    by_host = shards.per_device(shards.host_bytes).split(placement.devices_per_host)
    needed, available = max(int(held.sum()) for held in by_host), spec.host_memory_bytes if spec else None
    unchecked = "" if available else "; to have that checked, give host_memory in a hardware file (docs/hardware.md)"
    note(f"cached tables need {gib(needed)} of memory on the fullest host, and a prefetching pipeline{unchecked}")
    if available is not None and needed > available:
        raise NoPlacementError(
            f"cached tables need {gib(needed)} of a host's memory, but {spec and spec.name} has {gib(available)}; add "
            "hosts, or leave --cache out"
        )


def _sizes_of_version(store: Store, name: str, model: str) -> dict[str, Any]:
    """Devices, devices per host and memory of a version; hardware that is named has its own."""
    champion = registry.champion(store, model) if name == "champion" else None
    if not names_version(name) or (name == "champion" and champion is None):
        return {}
    tasks = (champion or registry.find(store, name, model)).made_of.recipe.tasks
    return {
        "devices": tasks.num_devices,
        "devices_per_host": tasks.devices_per_host,
        "memory_gb": tasks.memory_bytes / 2**30,
    }


def _constraints(options: PlaceOptions, tables: Sequence[str], num_devices: int, plan: Plan | None) -> Constraints:
    """Constraints of the plan: the options, then the file or text.

    Without `--sharding`, tables are whole or split by columns, or sharded as in the current plan.
    """
    if options.sharding:
        types = parse_sharding(options.sharding)
    else:
        used = {table.sharding_type for table in plan.tables.values()} if plan else set()
        types = tuple(kind for kind in SHARDING_TYPES if kind in {*UNCONSTRAINED.usual_types, *used})
    constraints = Constraints(sharding_types=types)
    if options.constraints:
        text = options.constraints.strip()
        given = Path(text) if text.endswith((".yaml", ".yml", ".json")) else text
        constraints = parse_constraints(given, tables, num_devices, types)
    if options.reserve_gb is not None:
        constraints = replace(constraints, reserve_bytes=round(options.reserve_gb * 2**30))
    return replace(constraints, caching=True) if options.cache else constraints


def setting_of(path: Path) -> dict[str, Any]:
    """Options of the setting that a plan's costs are of, with the hardware if that is a preset; empty if it says none."""
    try:
        measured = read_plan(path).costs_of
    except ValueError:  # it is TorchRec's, or `check` says what it is
        if not path.is_file():
            raise
        return {}
    if measured is None:
        return {}
    preset = measured.hardware.removeprefix("simulated ")
    setting = measured.model_dump(include={"precision", "optimizer", "batch_size"})
    return setting | {"hardware": preset if measured.testbed == "preset" and preset in PRESETS else None}


def read_any_plan(
    path: Path, tables: Tables, devices_per_host: int | None = None, num_devices: int | None = None
) -> Plan:
    """A plan of dreamshard's or TorchRec's.

    Args:
        path: of JSON.
        tables: of the model.
        devices_per_host: if TorchRec's plan does not say.
        num_devices: the fewest, as TorchRec's plan does not say how many there are.

    Raises:
        ValueError: the file is missing, or no plan.
    """
    if not path.is_file():
        return read_plan(path)  # says so
    text = path.read_bytes()
    with reading(path, "is not a plan", "give the current plan as JSON"):
        content = json.loads(text)
    if not isinstance(content, dict) or not content or "num_devices" in content:
        return parse_plan(text, str(path))
    plan: Plan = torchrec_bridge().current_plan(
        text, tables, num_devices=num_devices, devices_per_host=devices_per_host, name=str(path)
    )
    return plan


def prediction_sentence(plan: Plan) -> str:
    """Who placed, what the plan costs, and how many tables have which sharding type."""
    overall_ms, tables = plan.predicted.overall_ms, plan.tables.values()
    cost = "no cost is predicted" if overall_ms is None else f"predicted {overall_ms:.3f} ms"
    types = Counter[str](table.sharding_type for table in tables)
    types.update("cached" for table in tables if table.cached_share is not None)
    how = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
    return f"{plan.placer}: {cost} for {counted(len(tables), 'table')} on {counted(plan.num_devices, 'device')}: {how}"


def unmeasured_sentence(plan: Plan) -> str:
    """How many tables have sharding types that no training measures; empty if none has, or nothing is predicted."""
    count = len(plan.not_measured)
    if plan.predicted.overall_ms is None or not count:
        return ""
    return (
        f"no training measures the sharding types of {count} of {counted(len(plan.tables), 'table')}: "
        "their costs are predicted"
    )


def moving_lines(placed: Placed) -> Iterator[str]:
    """Cost of the current plan, gain and moves of the chosen one; nothing without a current plan."""
    price, weighed, current, kept = placed.request.price, placed.weighed, placed.request.current, placed.kept
    if current is None:
        return
    if weighed is not None:
        rate = f"{price.bytes_per_s / 1e9:g} GB/s"
        yield f"a gain has to pay for its moves within {price.steps_until_next:,.0f} steps; tables move at {rate}"
        if kept is None:
            yield f"the current plan cannot be kept: {weighed.why_not_kept}"
        else:
            chosen, now = weighed.chosen, f"current plan: predicted {kept.overall_ms:.3f} ms"
            yield f"{now}; new plan with all its moves: {_gain(kept, weighed.moved_all)}"
            if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
                yield "keep the current plan: no gain pays for its moves"
            else:
                seconds = price.move_ms(chosen.moved_bytes) / 1e3
                yield f"chosen: {_gain(kept, chosen)}; training stops for {seconds:.3g} s to move them"
            yield "  GiB moved        ms      gain"
            for point in weighed.curve:
                yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {_saved(kept, point):8.2%}"
    loaded = sum(step.memory_bytes for step in placed.steps if step.source is None)
    also = f"; {gib(loaded)} are loaded, not counted above" if loaded else ""
    changes = str(current) and f"; {current}"
    yield (
        f"{len(placed.moved_tables)} of {counted(len(current.sharding_of), 'table')} move, {gib(placed.moved_bytes)} in total"
        f"{also}{changes}"
    )


def _saved(kept: Point, point: Point) -> float:
    return 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0


def _gain(kept: Point, point: Point) -> str:
    saved = _saved(kept, point)
    change = f"{abs(kept.overall_ms - point.overall_ms):.3f} ms ({abs(saved):.1%}) {'less' if saved >= 0 else 'more'}"
    return f"{point.overall_ms:.3f} ms, {change}, moving {gib(point.moved_bytes)}"
