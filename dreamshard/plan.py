"""A placement as a file: `dreamshard place` writes it, a trainer or a later `--current` reads it.

A plan names tables and column ranges, so it is complete without the task. `dreamshard.torchrec` has TorchRec's form.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, StrictFloat, StrictInt, TypeAdapter

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.files.foreign import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS, json_content, reading
from dreamshard.measured_on import Difference, MeasuredOn, warning
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SPLIT_BY_COLUMNS,
    Block,
    Placement,
    ShardingType,
    TableSharding,
)
from dreamshard.shards import Shards
from dreamshard.tables import Tables, columns_of
from dreamshard.tasks import PlacementTask

_PROBLEM = "is not a plan"
_ADVICE = "so it cannot be used; give the JSON that `dreamshard place --format json` writes"
_MOST_SHARDS = 2**20  # that a placement lists one by one

Device = Annotated[StrictInt, Field(ge=0, le=MOST_DEVICES)]
Column = Annotated[StrictInt, Field(ge=0, le=MOST_COLUMNS)]
Row = Annotated[StrictInt, Field(ge=0, le=MOST_ROWS)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[StrictInt, Field(ge=1, le=MOST_DEVICES)]
Number = StrictInt | StrictFloat


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Columns `column_start` to `column_end` (exclusive) of a table, on one device.

    Attributes:
        row_start: first of its rows.
        row_end: after the last of its rows; None for all rows.
        sharding_type: of its table; None for table- or column-wise.
        cached_share: share of its rows that device memory caches while the table is in host memory; None for device memory.
    """

    table: Name
    device: Device
    column_start: Column
    column_end: Column
    row_start: Row = 0
    row_end: Row | None = None
    sharding_type: ShardingType | None = None
    cached_share: Annotated[Number, Field(gt=0, le=1)] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are not left at their defaults."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which device holds which columns of which table.

    Attributes:
        placer: e.g. `dreamshard 3` or `size_greedy`.
        shards: one per whole table, several per split table.
        overall_ms: predicted cost of the slowest device, or None without a cost network.
        devices: bytes, number of tables and, with a cost network, predicted milliseconds per phase of each device.
        costs_of: what the predicted costs were measured on; None if nothing is predicted, or it is unknown.
        differs_in: in what the plan differs from that; the hardware too, if it is unknown.
        warning: what this means, and what to do; also that the placer is provisional; empty without any of these.
        devices_per_host: of the devices; None if no table is on one host.
        moves: steps from the plan that was in use to this one; only in JSON.
        rows: of each table when the plan was made, by name; empty if that is not known.
    """

    num_devices: Count
    placer: Name = "unknown"
    shards: tuple[Shard, ...]
    overall_ms: Number | None = None
    devices: tuple[Mapping[str, Number], ...] = ()
    costs_of: Annotated[
        MeasuredOn | None, BeforeValidator(lambda v: MeasuredOn.from_json(v) if isinstance(v, dict) else v)
    ] = None
    differs_in: tuple[Difference, ...] = ()
    warning: str = ""
    devices_per_host: Count | None = None
    moves: tuple[Mapping[str, Any], ...] = ()
    rows: Mapping[str, Annotated[StrictInt, Field(ge=1, le=MOST_ROWS)]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The plan as the text of PLAN.json."""
        content = {
            "num_devices": self.num_devices,
            **({"devices_per_host": self.devices_per_host} if self.devices_per_host else {}),
            "placer": self.placer,
            "predicted": {"overall_ms": self.overall_ms, "devices": [dict(device) for device in self.devices]},
            "costs_of": self.costs_of.to_json() if self.costs_of else None,
            "differs_in": list(self.differs_in),
            "warning": self.warning or None,
            "not_measured": self.not_measured,
            "shards": [shard.to_json() for shard in self.shards],
            **({"rows": dict(self.rows)} if self.rows else {}),
            **({"moves": [dict(step) for step in self.moves]} if self.moves else {}),
        }
        return json.dumps(content, indent=2)

    def to_csv(self) -> str:
        """One row per shard: table, device, column_start, column_end; its other fields if any shard has them."""
        names = [each.name for each in fields(Shard)][: 4 if self.is_by_columns else None]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(astuple(shard)[: len(names)] for shard in self.shards)
        return text.getvalue()

    @property
    def is_by_columns(self) -> bool:
        """Whether every table is whole or split by columns, in device memory."""
        return not self.not_measured

    @property
    def not_measured(self) -> list[str]:
        """Tables sharded in ways that no training measures, or cached: their costs are predicted, not measured."""
        others = (each for each in self.shards if each.sharding_type is not None or each.cached_share is not None)
        return list(dict.fromkeys(shard.table for shard in others))

    def by_table(self) -> dict[str, list[Shard]]:
        """Shards of each table in the order of columns; tables in the order of the plan."""
        tables: dict[str, list[Shard]] = {shard.table: [] for shard in self.shards}
        for shard in sorted(self.shards, key=lambda shard: shard.column_start):
            tables[shard.table].append(shard)
        return tables

    def placement(self, tables: Tables) -> Placement:
        """This plan for `tables`.

        Raises:
            ValueError: the plan lacks a table, or does not hold each of its columns and rows as its way to shard does.
        """
        per_host, by_table = self.devices_per_host or self.num_devices, self.by_table()
        if missing := [name for name in tables.names if name not in by_table]:
            raise ValueError(
                f"the plan does not place tables {missing[:5]} ({len(missing)} of {len(tables)}); use the plan made for "
                "these tables"
            )
        shardings = tuple(_sharding_of(by_table[name], per_host) for name in tables.names)
        if sum(each.sharding_type in ON_EVERY_DEVICE for each in shardings) * self.num_devices > _MOST_SHARDS:
            raise ValueError(f"the plan has more than {_MOST_SHARDS:,} shards, more than can be compared; leave it out")
        placement = Placement(shardings, self.num_devices, per_host)
        sizes = zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
        for (name, rows, dim), sharding in zip(sizes, shardings, strict=True):
            held = Counter(
                (each.device, (each.row_start, each.row_end or rows), (each.column_start, each.column_end))
                for each in by_table[name]
            )
            blocks = sharding.blocks(rows, dim, self.num_devices, per_host)
            expected = Counter(block for block in blocks if block[1][0] < block[1][1])
            if wrong := sorted([*(held - expected), *(expected - held)]):
                device, (first, last), (start, end) = wrong[0]
                raise ValueError(
                    f"the plan does not hold table {name!r} as {sharding.sharding_type} does: rows {first} to {last}, "
                    f"columns {start} to {end} on device {device} are one too many or missing"
                )
        return placement


_PLAN = TypeAdapter(Plan)


def parse_plan(text: str | bytes, source: str = "the plan") -> Plan:
    """Read the text of a PLAN.json; `source` names it in errors.

    Raises:
        ValueError: the text is not JSON, or not a plan.
    """
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        predicted = content.pop("predicted", None) or {}
        given = {name: value for name, value in (content | predicted).items() if value is not None}
        return _PLAN.validate_python(given)


def read_plan(path: str | Path) -> Plan:
    """Read a PLAN.json.

    Raises:
        ValueError: the file is missing or not a plan.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}; check the path")
    return parse_plan(Path(path).read_bytes(), str(path))


def make_plan(task: PlacementTask, placement: Placement, placer: str, predicted: DeviceCosts | None = None) -> Plan:
    """The plan for `placement` of `task`; `predicted` holds `[D]` milliseconds per phase."""
    shards = Shards.of(task, placement)
    counts = torch.bincount(shards.device, minlength=task.num_devices).tolist()
    devices: list[dict[str, int | float]] = [
        {"memory_bytes": num_bytes, "tables": count}
        for num_bytes, count in zip(shards.memory_bytes().tolist(), counts, strict=True)
    ]
    if predicted is not None:
        for d, phases in enumerate(predicted.phases_ms().tolist()):
            devices[d] |= {f"{phase}_ms": round(ms, 4) for phase, ms in zip(PHASES, phases, strict=True)}
    sizes = list(zip(task.tables.names, task.tables.rows.tolist(), task.tables.dim.tolist(), strict=True))
    num_devices, per_host = task.num_devices, placement.devices_per_host
    plan = Plan(
        num_devices=num_devices,
        placer=placer,
        shards=tuple(
            shard
            for (name, rows, dim), sharding in zip(sizes, placement.tables, strict=True)
            for shard in shards_of(
                name,
                sharding.sharding_type,
                sharding.cached_share,
                rows,
                sharding.blocks(rows, dim, num_devices, per_host),
            )
        ),
        overall_ms=None if predicted is None else round(float(predicted.overall_ms()), 4),
        devices=tuple(devices),
        rows={name: rows for name, rows, _ in sizes},
    )
    return plan if plan.is_by_columns else replace(plan, devices_per_host=per_host)


def shards_of(
    table: str, kind: ShardingType, cached_share: float | None, rows: int, blocks: Sequence[Block]
) -> list[Shard]:
    """The shards of a table of so many rows, without empty ones."""
    return [
        Shard(
            table=table,
            device=device,
            column_start=start,
            column_end=end,
            row_start=first,
            row_end=None if last - first == rows else last,
            sharding_type=None if kind in ON_ONE_DEVICE else kind,
            cached_share=cached_share,
        )
        for device, (first, last), (start, end) in blocks
        if first < last
    ]


def with_origin(
    plan: Plan,
    task: PlacementTask,
    costs_of: MeasuredOn | None,
    *,
    hardware: str | None = None,
    called: str | None = None,
    knows_topology: bool = False,
) -> Plan:
    """The plan with what its costs are of, and a warning if the task asks for something else.

    Args:
        plan: whose costs are predicted.
        task: that it places.
        costs_of: None if the placer's files do not say.
        hardware: name of the hardware that the plan is for; None if that is not said.
        called: how the user calls that hardware, e.g. a file's path.
        knows_topology: as in `MeasuredOn.differences`.
    """
    if costs_of is None:
        differs: list[Difference] = ["hardware"] if hardware else []
    else:
        differs = costs_of.differences(task, hardware, knows_topology=knows_topology)
    text = warning(costs_of, task, called or hardware, differs)
    return replace(plan, costs_of=costs_of, differs_in=tuple(differs), warning=text)


@dataclass(frozen=True)
class CurrentPlan:
    """A plan in use, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The plan's placement, also if the task's tables are column shards.

        Raises:
            ValueError: the plan is for another number of devices, or lacks columns of a table.
        """
        if self.plan.num_devices != task.num_devices:
            raise ValueError(
                f"the current plan is for {self.plan.num_devices} devices, but {task.name} has {task.num_devices}; give "
                f"--devices {self.plan.num_devices}, or the plan in use on {task.num_devices}"
            )
        if not self.plan.is_by_columns:
            raise ValueError(
                "the current plan shards some tables in other ways than whole or by columns, which are not measured beside "
                "whole tables; leave --current out, or give a plan of `dreamshard place --sharding columns`"
            )
        by_table, shardings = self.plan.by_table(), []
        for name, dim in zip(task.tables.names, task.tables.dim.tolist(), strict=True):
            table, first = columns_of(name) if name not in by_table else (name, 0)
            held = [
                (max(each.column_start - first, 0), min(each.column_end - first, dim), each.device)
                for each in by_table.get(table, ())
            ]
            held = [(start, end, device) for start, end, device in held if start < end]
            ends = [0, *(end for _, end, _ in held)]
            if [start for start, _, _ in held] != ends[:-1] or ends[-1] != dim:
                raise ValueError(
                    f"the current plan does not place the {dim} columns of table {name!r} once each; give the plan in use"
                )
            shardings.append(TableSharding.by_columns(tuple(pairwise(ends)), [device for _, _, device in held]))
        return Placement(tuple(shardings), task.num_devices, task.devices_per_host or task.num_devices)


def _sharding_of(shards: list[Shard], devices_per_host: int) -> TableSharding:
    """How a table is sharded whose shards are these; the caller checks that they are complete."""
    ranges = sorted({(shard.column_start, shard.column_end) for shard in shards})
    sharding_type = shards[0].sharding_type or ("table_wise" if len(ranges) == 1 else "column_wise")
    size = devices_per_host if sharding_type in ON_ONE_HOST else 1
    first = [min(each.device for each in shards if (each.column_start, each.column_end) == own) for own in ranges]
    where = () if sharding_type in ON_EVERY_DEVICE else tuple(device // size for device in first)
    columns = tuple(ranges) if sharding_type in SPLIT_BY_COLUMNS else ()
    return TableSharding(sharding_type, columns, where, shards[0].cached_share)
