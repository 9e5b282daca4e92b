"""From tables to a plan in four functions, which `import dreamshard as ds` gives: name a placer, place, explain, compare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import nn
from upath import UPath

from dreamshard import explanation, training
from dreamshard.constraints import UNCONSTRAINED
from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.explanation import Explanation
from dreamshard.files import did_you_mean
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec, hardware, is_hardware_file
from dreamshard.plan import Plan, PlannedTable, Predicted
from dreamshard.rivals import RIVALS, rival
from dreamshard.search import PARTS, DreamShardPlacer, RooflinePlacer, SearchingPlacer, part_of
from dreamshard.search.packing import baselines
from dreamshard.tables import ON_ONE_HOST, Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, Placer, Shards, violation
from dreamshard.workloads import ModelTables, bundled_lists, check_records, list_tables, model_tables

PLACERS = (*baselines(), *PARTS, *RIVALS)
"""Names of placers that are neither a version nor a preset: heuristics, parts of a trained placer, TorchRec's planner."""

TableSource = str | Path | Sequence[Mapping[str, Any]] | nn.Module
AnyPlacer = Placer | str | Path
"""A placer, or its name as for `load_placer`."""


def read_tables(source: TableSource, defaults: Tables | None = None) -> Tables:
    """Read tables, and fill in missing statistics of their lookups.

    Args:
        source: a `.csv`, `.parquet` or `.json` file, a bundled list's name, a list of objects with the same fields
            (docs/own-tables.md), or a model with TorchRec's collections.
        defaults: dataset that fills in missing statistics; None for a Zipf law's expectation.

    Raises:
        ValueError: there is no such source, or a table in it is wrong, which the message names.

    >>> tables = ds.read_tables([{"name": "user", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.5}])
    >>> tables.dim.tolist(), tables.lookups.tolist()
    ([64], [98304])
    """
    return read_model(source, defaults).tables


def read_model(source: TableSource, defaults: Tables | None = None) -> ModelTables:
    """`read_tables`, with everything that the source says of each table."""
    if isinstance(source, nn.Module):
        from dreamshard.torchrec import tables_of  # optional

        return tables_of(source, defaults=defaults)
    if isinstance(source, str | Path):
        return model_tables(list_tables(bundled_lists().get(str(source), source)), defaults=defaults)
    return model_tables(check_records({f"table {t}": record for t, record in enumerate(source)}), defaults=defaults)


def load_placer(name: str | Path) -> Placer:
    """The placer of a name.

    Args:
        name: a preset (`a100`) or a hardware file (`cluster.yaml`), whose figures it places by; a heuristic
            (`lookup_greedy`) or TorchRec's planner (`torchrec_planner`); a folder or address (`s3://bucket/placer`) that
            `save_placer` wrote; or a version in the registry (`champion`, `3`, or MLflow's URI), by `dreamshard[pipeline]`.

    Raises:
        ValueError: there is no such placer.

    >>> ds.load_placer("h100").name, ds.load_placer("lookup_greedy").name
    ('prior', 'lookup_greedy')
    """
    text = str(name)
    if text in PLACERS:
        return placer_called(text)
    if text.lower() in PRESETS or is_hardware_file(text):
        return RooflinePlacer(hardware(text))
    if ("://" in text and not text.startswith("models:")) or Path(text).is_dir():
        return training.load_placer(UPath(text))
    try:
        (registry,) = entry_points(group="dreamshard.placers")  # a function from a version's name to its placer
        placer: Placer = registry.load()(text)
        return placer
    except (ValueError, ImportError) as error:
        missing = "; `pip install 'dreamshard[pipeline]'` for versions" if isinstance(error, ImportError) else ""
        raise ValueError(
            f"{text!r} is not a preset{did_you_mean(text, PRESETS)}, hardware file or folder; {error}{missing}"
        ) from error


def placer_called(
    name: str, base: DreamShardPlacer | None = None, spec: AcceleratorSpec | None = None, seed: int = 0
) -> Placer:
    """The placer of one of `PLACERS`.

    Args:
        base: predicts costs for placers that place by them.
        spec: bandwidths and hosts that published planners assume; None for their defaults.
        seed: of random placements.

    Raises:
        ValueError: it needs torchrec, which is not installed, or a `base`.
    """
    if name in PARTS:
        if base is None:
            raise ValueError(
                f"{name} needs a trained cost network (AutoShard's predicts compute only); train one with `dreamshard run`, "
                "name a version with one, or give a heuristic"
            )
        return part_of(name, base)
    return baselines(seed).get(name) or rival(name, spec=spec)


def place(task: PlacementTask, placer: AnyPlacer, *, budget_ms: float | None = None) -> Plan:
    """Plan the tables of a task.

    Args:
        placer: or its name, as for `load_placer`.
        budget_ms: work of the search: as much as an idle core does in this time; None for the task's own.

    Raises:
        NoPlacementError: none was found that respects memory and constraints.

    >>> plan = ds.place(task, "a100")
    >>> plan.num_devices, plan.tables["item"].sharding_type
    (2, 'table_wise')
    """
    by = placer_of(placer)
    predictor = by if isinstance(by, SearchingPlacer) else None
    return make_plan(task, legal_placement(task, by, budget_ms), by.name, predictor)


def make_plan(
    task: PlacementTask,
    placement: Placement,
    placer: str,
    predictor: SearchingPlacer | None = None,
    *,
    hardware: str | None = None,
    called: str | None = None,
) -> Plan:
    """The plan for `placement` of `task`, with a warning if its costs are of something else than the task.

    Args:
        placer: its name.
        predictor: of costs; None for a plan without any.
        hardware: name of the hardware that the plan is for; None if that is not said.
        called: the user's name of that hardware, e.g. a file's path.
    """
    shards, tables = Shards.of(task, placement), task.tables
    counts = torch.bincount(shards.device, minlength=task.num_devices)
    figures: dict[str, list[int | float]] = {"memory_bytes": shards.memory_bytes().tolist(), "tables": counts.tolist()}
    if shards.in_host.any():
        figures["host_memory_bytes"] = shards.per_device(shards.host_bytes).tolist()
    overall_ms, known = None, dict[str, Any]()
    if predictor is not None:
        costs = predictor.predict(task, placement)
        overall_ms = round(float(costs.overall_ms()), 4)
        for phase, each_ms in zip(PHASES, costs.phases_ms.T.tolist(), strict=True):
            figures[f"{phase}_ms"] = [round(ms, 4) for ms in each_ms]
        known["differs_in"], known["warning"] = predictor.differences(task, hardware, called)
        known["costs_of"] = predictor.measured_on(task)
    devices = zip(*figures.values(), strict=True)
    return Plan(
        num_devices=task.num_devices,
        devices_per_host=(
            placement.devices_per_host if placement.sharding_types & set(ON_ONE_HOST) else task.devices_per_host
        ),
        placer=placer,
        predicted=Predicted(
            overall_ms=overall_ms, devices=tuple(dict(zip(figures, of, strict=True)) for of in devices)
        ),
        **known,
        tables={
            name: PlannedTable(**vars(sharding), rows=rows, dim=dim)
            for (name, rows, dim), sharding in zip(tables.sizes, placement.tables, strict=True)
        },
    )


def legal_placement(task: PlacementTask, placer: Placer, budget_ms: float | None = None) -> Placement:
    """What a placer finds for a task; raises a NoPlacementError if that is not legal."""
    placement = placer.place(task, budget_ms)
    if reason := violation(task, placement):
        roomy = replace(task, memory_bytes=2**62, constraints=replace(task.constraints, memory_bytes_of={}))
        raise NoPlacementError(
            f"the placement that {placer.name} found cannot be used: {reason}; loosen constraints, or use another placer, "
            "for example a preset",
            is_strict=bool(violation(roomy, placement)),
        )
    return placement


def explain(task: PlacementTask, plan: Plan, placer: AnyPlacer) -> Explanation:
    """Say why each device of a plan is slow, and what each table costs there and elsewhere, as a placer predicts it.

    Raises:
        ValueError: the plan is of other tables, or the placer predicts no costs.

    >>> explanation = ds.explain(task, plan, "a100")
    >>> [reason.table for reason in explanation.tables]
    ['item', 'user']
    """
    return explanation.explain(*_on_hosts(task, plan), _predictor(placer))


def compare_plans(task: PlacementTask, plans: Mapping[str, Plan], placer: AnyPlacer) -> dict[str, DeviceCosts]:
    """Predict each device's costs under several plans of the same tables; the cheapest plan comes first.

    Raises:
        ValueError: a plan is of other tables, or the placer predicts no costs.

    >>> both = {"one device": ds.place(ds.PlacementTask(task.tables, 1, 2**34), "a100"), "two": plan}
    >>> list(ds.compare_plans(task, both, "a100"))
    ['one device', 'two']
    """
    predictor = _predictor(placer)
    costs = {name: predictor.predict(*_on_hosts(task, plan)) for name, plan in plans.items()}
    return dict(sorted(costs.items(), key=lambda named: float(named[1].overall_ms())))


def placer_of(placer: AnyPlacer) -> Placer:
    """The placer, or the one of that name."""
    return load_placer(placer) if isinstance(placer, str | Path) else placer


def _predictor(placer: AnyPlacer) -> SearchingPlacer:
    by = placer_of(placer)
    if not isinstance(by, SearchingPlacer):
        raise ValueError(f"{by.name} predicts no costs of a step; give a preset or a trained placer")
    return by


def _on_hosts(task: PlacementTask, plan: Plan) -> tuple[PlacementTask, Placement]:
    """The task, without its constraints if the plan has other devices, and the plan's placement."""
    placement = plan.placement(task.tables).on_hosts_of(task.devices_per_host)
    if plan.num_devices != task.num_devices:
        task = replace(task, num_devices=plan.num_devices, constraints=UNCONSTRAINED)
    return task, placement
