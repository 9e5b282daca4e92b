"""A placement as a file: `dreamshard place` writes it; a trainer or a later `--current` reads it.

It says how each table is sharded, and its size, so that it is complete without the task.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, computed_field
from upath import UPath

from dreamshard.costs import Difference, MeasuredOn
from dreamshard.files import MOST_DEVICES, reading
from dreamshard.tables import Dim, Placement, Rows, Tables, TableSharding
from dreamshard.tasks import PlacementTask

Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
_CSV_COLUMNS = "table device column_start column_end row_start row_end sharding_type cached_share"
Count = Annotated[int, Field(ge=1, le=MOST_DEVICES)]


@dataclass(frozen=True, kw_only=True)
class PlannedTable(TableSharding):
    """How a table of so many rows and columns is sharded."""

    rows: Rows
    dim: Dim

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
        devices: bytes (of host memory too, if tables are cached), shards and, with costs, milliseconds per phase of each.
    """

    overall_ms: float | None = None
    devices: tuple[Mapping[str, int | float], ...] = ()


class Plan(BaseModel):
    """How each table is sharded, and on which devices.

    Attributes:
        devices_per_host: of the devices; None for the hardware's, if no table is on one host.
        placer: e.g. `dreamshard 3` or `size_greedy`.
        costs_of: the measurements behind the prediction; None if there is none, or they are unknown.
        differs_in: respects in which the plan differs from them; the hardware too, if it is unknown.
        warning: a sentence on these, with advice, or that the placer is provisional; otherwise empty.
        tables: by name.
        moves: steps from the former plan to this one.

    >>> _ = Path("plan.json").write_text(plan.to_json())
    >>> ds.read_plan("plan.json") == plan
    True
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
        """Cached tables, and tables of types that no training measures: their costs are predicted, not measured."""
        return [name for name, table in self.tables.items() if not table.is_by_columns]

    def to_json(self) -> str:
        """The plan as the text of PLAN.json."""
        return self.model_dump_json(indent=2)

    def to_csv(self) -> str:
        """One row per shard; ends are exclusive."""
        per_host = self.devices_per_host or self.num_devices
        shards = [
            (name, device, *columns, *rows, table.sharding_type, table.cached_share)
            for name, table in self.tables.items()
            for device, rows, columns in table.blocks(table.rows, table.dim, self.num_devices, per_host)
            if rows[0] < rows[1]
        ]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_CSV_COLUMNS.split(), *shards])
        return text.getvalue()

    def placement(self, tables: Tables) -> Placement:
        """This plan for `tables`; a ValueError names the first that it lacks or has in another size."""
        for name, *size in tables.sizes:
            planned = self.tables.get(name)
            if planned is None or [planned.rows, planned.dim] != size:
                held = "missing" if planned is None else f"{planned.rows} x {planned.dim}"
                raise ValueError(
                    f"the plan was not made for these tables: {name!r} of {size[0]} x {size[1]} is {held} in the plan; "
                    "plan again, or promote a newer plan"
                )
        return self.placed(self.tables[name].sharding for name in tables.names)

    def placed(self, shardings: Iterable[TableSharding]) -> Placement:
        """Tables sharded like this on the plan's devices."""
        return Placement(tuple(shardings), self.num_devices, self.devices_per_host or self.num_devices)


def parse_plan(text: str | bytes, source: str = "the plan") -> Plan:
    """Read the text of a PLAN.json; `source` names it in errors."""
    with reading(source, "is not a plan", "give JSON of `dreamshard place`"):
        return Plan.model_validate_json(text)


def read_plan(path: str | Path) -> Plan:
    """Read a PLAN.json at a path or an address that fsspec reads; a ValueError says that it is missing or no plan.

    >>> ds.read_plan("plan.json").num_devices
    2
    """
    try:
        text = UPath(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ValueError(f"there is no plan at {path}; check the path") from error
    return parse_plan(text, str(path))


@dataclass(frozen=True)
class CurrentPlan:
    """A current plan, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The plan's placement, also if the task's tables are column shards; a ValueError says which it lacks."""
        ranges = zip(task.tables.names, task.tables.column_ranges.tolist(), strict=True)
        placement = self.plan.placed(self._sharding_of(name, *columns) for name, columns in ranges)
        return placement.on_hosts_of(task.devices_per_host)

    def _sharding_of(self, name: str, first: int, last: int) -> TableSharding:
        """Of columns `first` to `last` of a table, as a table of their own."""
        planned = self.plan.tables.get(name)
        if planned is None or planned.dim < last:
            raise ValueError(
                f"the current plan does not place columns {first} to {last} of table {name!r}; give the plan of this model"
            )
        if planned.dim == last - first or not planned.columns:
            return planned.sharding
        held = [
            ((max(start, first) - first, min(end, last) - first), place)
            for (start, end), place in zip(planned.columns, planned.where, strict=True)
            if start < last and first < end
        ]
        columns, where = zip(*held, strict=True)
        return replace(planned.sharding, columns=columns, where=where)
