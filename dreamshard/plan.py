"""A placement as a file: `dreamshard place` writes it, a trainer or a later `--current` reads it.

A plan names tables and column ranges, so it is complete without the task. `dreamshard.torchrec` has TorchRec's form.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path

import torch

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.measured_on import Difference, MeasuredOn, warning
from dreamshard.placement import ColumnShard, Placement, column_shards, device_memory_bytes
from dreamshard.tables import Tables, columns_of
from dreamshard.tasks import PlacementTask

_NUMBERS = ("device", "column_start", "column_end")  # fields of a shard besides its table


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Columns `column_start` to `column_end` (exclusive) of a table, on one device."""

    table: str
    device: int
    column_start: int
    column_end: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which device holds which columns of which table.

    Attributes:
        placer: e.g. `dreamshard 3` or `size_greedy`.
        shards: one per whole table, several per split table.
        overall_ms: predicted cost of the slowest device, or None without a cost network.
        devices: bytes, number of tables and, with a cost network, predicted milliseconds per phase of each device.
        costs_of: what the predicted costs were measured on; None where nothing is predicted, or it is unknown.
        differs_in: in what the plan differs from that; the hardware too, where it is unknown.
        warning: what this means, and what to do; empty without a difference.
    """

    num_devices: int
    placer: str
    shards: tuple[Shard, ...]
    overall_ms: int | float | None = None
    devices: tuple[Mapping[str, int | float], ...] = field(default_factory=tuple)
    costs_of: MeasuredOn | None = None
    differs_in: tuple[Difference, ...] = ()
    warning: str = ""

    def __post_init__(self) -> None:
        counts = Counter((shard.table, shard.column_start) for shard in self.shards)
        repeated = sorted({table for (table, _), count in counts.items() if count > 1})
        if repeated:
            raise ValueError(
                f"the plan holds columns of tables {repeated[:5]} twice, so it is unclear which device has them; keep one "
                "entry per table and column range"
            )
        bad = [shard for shard in self.shards if not 0 <= shard.device < self.num_devices]
        if bad:
            raise ValueError(
                f"the plan puts {bad[0].table!r} on device {bad[0].device}, but it has devices "
                f"0..{self.num_devices - 1}; correct `device` or `num_devices`"
            )
        empty = [shard for shard in self.shards if not 0 <= shard.column_start < shard.column_end]
        if empty:
            raise ValueError(
                f"the plan gives {empty[0].table!r} the columns {empty[0].column_start} to {empty[0].column_end}, "
                "which hold nothing; column_start must be at least 0 and below column_end"
            )

    def to_json(self) -> str:
        """The plan as the text of PLAN.json."""
        return json.dumps(
            {
                "num_devices": self.num_devices,
                "placer": self.placer,
                "predicted": {"overall_ms": self.overall_ms, "devices": [dict(device) for device in self.devices]},
                "costs_of": self.costs_of.to_json() if self.costs_of else None,
                "differs_in": list(self.differs_in),
                "warning": self.warning or None,
                "shards": [asdict(shard) for shard in self.shards],
            },
            indent=2,
        )

    def to_csv(self) -> str:
        """One row per shard: table, device, column_start, column_end."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["table", *_NUMBERS])
        writer.writerows(astuple(shard) for shard in self.shards)
        return text.getvalue()

    def by_table(self) -> dict[str, list[Shard]]:
        """Shards of each table in the order of columns; tables in the order of the plan."""
        tables: dict[str, list[Shard]] = {shard.table: [] for shard in self.shards}
        for shard in sorted(self.shards, key=lambda shard: shard.column_start):
            tables[shard.table].append(shard)
        return tables

    def placement(self, tables: Tables) -> Placement:
        """This plan for `tables`; shards of a table are in the order of columns.

        Raises:
            ValueError: the plan lacks a table or does not hold each of its columns once.
        """
        by_table = self.by_table()
        missing = [name for name in tables.names if name not in by_table]
        if missing:
            raise ValueError(
                f"the plan does not place tables {missing[:5]} ({len(missing)} of {len(tables)}), so they would have no "
                "device; use the plan that was made for these tables"
            )
        ordered = []
        for t, (name, dim) in enumerate(zip(tables.names, tables.dim.tolist(), strict=True)):
            shards = by_table[name]
            ends = [0, *(shard.column_end for shard in shards)]
            if [shard.column_start for shard in shards] != ends[:-1] or ends[-1] != dim:
                ranges = ", ".join(f"{shard.column_start} to {shard.column_end}" for shard in shards)
                raise ValueError(
                    f"the plan gives columns {ranges} of {name!r}, which has {dim}, so some would be dropped or held "
                    "twice; use the plan that was made for these tables"
                )
            ordered += [(t, shard) for shard in shards]
        device = torch.tensor([shard.device for _, shard in ordered])
        if len(ordered) == len(tables):
            return Placement(device, self.num_devices)
        columns = tuple(ColumnShard(t, shard.column_start, shard.column_end) for t, shard in ordered)
        return Placement(device, self.num_devices, columns)


@dataclass(frozen=True)
class CurrentPlan:
    """A plan in use, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask) -> Placement:
        """The plan's placement, also where the task's tables are column shards.

        Raises:
            ValueError: the plan is for another number of devices, or lacks columns of a table.
        """
        if self.plan.num_devices != task.num_devices:
            raise ValueError(
                f"the current plan is for {self.plan.num_devices} devices, but {task.name} has {task.num_devices}, so their "
                f"costs do not compare; give --devices {self.plan.num_devices}, or the plan in use on {task.num_devices}"
            )
        by_table, columns, devices = self.plan.by_table(), [], []
        for t, (name, dim) in enumerate(zip(task.tables.names, task.tables.dim.tolist(), strict=True)):
            table, first = columns_of(name) if name not in by_table else (name, 0)
            reached = 0
            for shard in by_table.get(table, ()):
                start, end = max(shard.column_start - first, 0), min(shard.column_end - first, dim)
                if start == reached < end:
                    columns.append(ColumnShard(t, start, end))
                    devices.append(shard.device)
                    reached = end
            if reached != dim:
                raise ValueError(
                    f"the current plan places {reached} of the {dim} columns of table {name!r}, so it is not a plan of this "
                    "model; give the plan that is in use for these tables"
                )
        whole = len(columns) == len(task.tables)
        return Placement(torch.tensor(devices), task.num_devices, None if whole else tuple(columns))


def make_plan(task: PlacementTask, placement: Placement, placer: str, predicted: DeviceCosts | None = None) -> Plan:
    """The plan for `placement` of `task`; `predicted` holds `[D]` milliseconds per phase."""
    memory = device_memory_bytes(task.sharded(placement)[0].table_bytes, placement.device[None], task.num_devices)[0]
    devices: list[dict[str, int | float]] = [
        {"memory_bytes": num_bytes, "tables": len(placement.tables_of(d))}
        for d, num_bytes in enumerate(memory.tolist())
    ]
    overall_ms = None
    if predicted is not None:
        overall_ms = round(float(predicted.overall_ms()), 4)
        for d, phases in enumerate(predicted.phases_ms().tolist()):
            devices[d] |= {f"{phase}_ms": round(ms, 4) for phase, ms in zip(PHASES, phases, strict=True)}
    shards = tuple(
        Shard(table=task.tables.names[shard.table], device=device, column_start=shard.start, column_end=shard.end)
        for shard, device in zip(column_shards(task.tables, placement), placement.device.tolist(), strict=True)
    )
    return Plan(
        num_devices=task.num_devices, placer=placer, shards=shards, overall_ms=overall_ms, devices=tuple(devices)
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
    """The plan with what its costs are of, and a warning where the task asks for something else.

    Args:
        plan: whose costs are predicted.
        task: that it places.
        costs_of: None where the placer's files do not say.
        hardware: name of the hardware that the plan is for; None where that is not said.
        called: how the user calls that hardware, e.g. a file's path.
        knows_topology: as in `MeasuredOn.differences`.
    """
    if costs_of is None:
        differs: list[Difference] = ["hardware"] if hardware else []
    else:
        differs = costs_of.differences(task, hardware, knows_topology=knows_topology)
    text = warning(costs_of, task, called or hardware, differs)
    return replace(plan, costs_of=costs_of, differs_in=tuple(differs), warning=text)


def parse_plan(text: str | bytes, source: str = "the plan") -> Plan:
    """Read the text of a PLAN.json; `source` names it in errors.

    Raises:
        ValueError: the text is not JSON, or not a plan.
    """
    try:
        content = json.loads(text)
        predicted = content.get("predicted") or {}
        return Plan(
            num_devices=int(content["num_devices"]),
            placer=str(content.get("placer", "unknown")),
            shards=tuple(
                Shard(table=str(entry["table"]), **{name: int(entry[name]) for name in _NUMBERS})
                for entry in content["shards"]
            ),
            overall_ms=predicted.get("overall_ms"),
            devices=tuple(predicted.get("devices", ())),
            costs_of=MeasuredOn.from_json(content["costs_of"]) if content.get("costs_of") else None,
            differs_in=tuple(content.get("differs_in", ())),
            warning=content.get("warning") or "",
        )
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{source} is not a plan ({type(error).__name__}: {error}), so it cannot be used; give the JSON "
            'that `dreamshard place --format json` writes: {"num_devices", "placer", "predicted", "shards"}'
        ) from error


def read_plan(path: str | Path) -> Plan:
    """Read a PLAN.json.

    Raises:
        ValueError: the file is missing or not a plan.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}, so nothing can be compared with it; check the path")
    return parse_plan(Path(path).read_bytes(), str(path))
