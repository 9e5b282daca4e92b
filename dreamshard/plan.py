"""A placement as a file: `dreamshard place` writes it; a trainer or a later `--current` reads it.

A plan says how each table is sharded, and its size when the plan was made, so it is complete without the task. A file of
thousands of tables on hundreds of devices stays small, because blocks of rows and copies follow from the way to shard.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, computed_field

from dreamshard.costs import PHASES, DeviceCosts, Difference, MeasuredOn, warning
from dreamshard.files.foreign import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS, json_content, reading
from dreamshard.files.text import shown
from dreamshard.placement import ON_ONE_HOST, Placement, TableSharding
from dreamshard.shards import Shards
from dreamshard.tables import Tables, columns_of
from dreamshard.tasks import PlacementTask

_PROBLEM = "is not a plan"
_ADVICE = "so it cannot be used; give the JSON that `dreamshard place` writes"

Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[int, Field(ge=1, le=MOST_DEVICES)]


@dataclass(frozen=True, kw_only=True)
class PlannedTable(TableSharding):
    """How a table of so many rows and columns is sharded."""

    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    dim: Annotated[int, Field(ge=1, le=MOST_COLUMNS)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranges(self.dim)[-1][1] != self.dim:
            raise ValueError(f"column ranges {self.columns} are not of a table of {self.dim} columns")

    @property
    def sharding(self) -> TableSharding:
        """Without the size."""
        return TableSharding(self.sharding_type, self.columns, self.where, self.cached_share)


class Predicted(BaseModel):
    """Predicted cost of a step; the figures of each device are known without a prediction, too.

    Attributes:
        overall_ms: of the slowest device; None without a cost network.
        devices: bytes, number of shards and, with a cost network, milliseconds per phase of each device.
    """

    overall_ms: float | None = None
    devices: tuple[Mapping[str, int | float], ...] = ()


class Plan(BaseModel):
    """How each table is sharded, and on which devices.

    Attributes:
        devices_per_host: of the devices; None if no table is on one host.
        placer: e.g. `dreamshard 3` or `size_greedy`.
        costs_of: the measurements behind the prediction; None if nothing is predicted, or it is unknown.
        differs_in: in what the plan differs from them; the hardware too, if it is unknown.
        warning: what this means, and what to do; also that the placer is provisional; empty without any of these.
        tables: by name.
        moves: steps from the plan that was in use to this one.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    num_devices: Count
    devices_per_host: Count | None = None
    placer: Name = "unknown"
    predicted: Predicted = Predicted()
    costs_of: MeasuredOn | None = None
    differs_in: tuple[Difference, ...] = ()
    warning: str = ""
    tables: Mapping[Name, PlannedTable]
    moves: tuple[Mapping[str, Any], ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def not_measured(self) -> list[str]:
        """Tables sharded in ways that no training measures, or cached: their costs are predicted, not measured."""
        return [name for name, each in self.tables.items() if not each.is_by_columns]

    def to_json(self) -> str:
        """The plan as the text of PLAN.json."""
        return self.model_dump_json(indent=2)

    def to_csv(self) -> str:
        """One row per shard; ends are exclusive."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = ("column_start", "column_end", "row_start", "row_end")
        writer.writerow(("table", "device", *ends, "sharding_type", "cached_share"))
        for name, each in self.tables.items():
            blocks = each.blocks(each.rows, each.dim, self.num_devices, self.devices_per_host or self.num_devices)
            for device, rows, columns in blocks:
                if rows[0] < rows[1]:
                    writer.writerow((name, device, *columns, *rows, each.sharding_type, each.cached_share))
        return text.getvalue()

    def placement(self, tables: Tables) -> Placement:
        """This plan for `tables`; a ValueError says which it lacks or has in another size."""
        differences = []
        for name, *size in zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True):
            own = self.tables.get(name)
            if own is None or [own.rows, own.dim] != size:
                held = "missing" if own is None else f"{own.rows} x {own.dim}"
                differences.append(f"{name!r} of {size[0]} x {size[1]} is {held} in the plan")
        if differences:
            raise ValueError(f"the plan was not made for these tables: {shown(differences)}; plan again")
        shardings = tuple(self.tables[name].sharding for name in tables.names)
        return Placement(shardings, self.num_devices, self.devices_per_host or self.num_devices)


def parse_plan(text: str | bytes, source: str = "the plan") -> Plan:
    """Read the text of a PLAN.json; `source` names it in errors."""
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        return Plan.model_validate(content)


def read_plan(path: str | Path) -> Plan:
    """Read a PLAN.json; a ValueError says that it is missing or no plan."""
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}; check the path")
    return parse_plan(Path(path).read_bytes(), str(path))


def make_plan(task: PlacementTask, placement: Placement, placer: str, costs: DeviceCosts | None = None) -> Plan:
    """The plan for `placement` of `task`; `costs` holds `[D]` predicted milliseconds per phase."""
    shards = Shards.of(task, placement)
    counts = torch.bincount(shards.device, minlength=task.num_devices).tolist()
    devices: list[dict[str, int | float]] = [
        {"memory_bytes": num_bytes, "tables": count}
        for num_bytes, count in zip(shards.memory_bytes().tolist(), counts, strict=True)
    ]
    if costs is not None:
        for d, phases in enumerate(costs.phases_ms().tolist()):
            devices[d] |= {f"{phase}_ms": round(ms, 4) for phase, ms in zip(PHASES, phases, strict=True)}
    overall_ms = None if costs is None else round(float(costs.overall_ms()), 4)
    tables, on_hosts = task.tables, placement.sharding_types & set(ON_ONE_HOST)
    sizes = zip(tables.rows.tolist(), tables.dim.tolist(), placement.tables, strict=True)
    planned = [PlannedTable(**vars(sharding), rows=rows, dim=dim) for rows, dim, sharding in sizes]
    return Plan(
        num_devices=task.num_devices,
        devices_per_host=placement.devices_per_host if on_hosts else None,
        placer=placer,
        predicted=Predicted(overall_ms=overall_ms, devices=tuple(devices)),
        tables=dict(zip(tables.names, planned, strict=True)),
    )


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
    return plan.model_copy(update={"costs_of": costs_of, "differs_in": tuple(differs), "warning": text})


@dataclass(frozen=True)
class CurrentPlan:
    """A plan in use, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The plan's placement, also if the task's tables are column shards; a ValueError says which it lacks."""
        sizes = zip(task.tables.names, task.tables.dim.tolist(), strict=True)
        tables = tuple(self._sharding_of(name, dim) for name, dim in sizes)
        placement = Placement(tables, self.plan.num_devices, self.plan.devices_per_host or self.plan.num_devices)
        return placement.on_hosts_of(task.devices_per_host)

    def _sharding_of(self, name: str, dim: int) -> TableSharding:
        """Of a table, or of some columns of one that are a table of their own."""
        own = self.plan.tables.get(name)
        if own is not None and own.dim == dim:
            return own.sharding
        table, first = columns_of(name)
        own, ends, where = self.plan.tables.get(table), [0], []
        for (start, end), device in zip(own.ranges(own.dim), own.where, strict=False) if own else ():
            if max(start, first) < min(end, first + dim):
                ends.append(min(end - first, dim))
                where.append(device)
        if ends[-1] != dim:
            raise ValueError(
                f"the current plan does not place the {dim} columns of table {name!r} once each; give the plan in use"
            )
        return TableSharding.by_columns(tuple(pairwise(ends)), where)
