"""The content of a plan file, and the placements that it stands for."""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from dreamshard.files.foreign import InputError
from dreamshard.measured_on import Difference, MeasuredOn
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Placement,
    ShardingType,
    TableSharding,
)
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

_MOST_SHARDS = 2**20  # of which a placement lists each
_NUMBERS = ("device", "column_start", "column_end")  # fields of a shard of whole columns besides its table


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Columns `column_start` to `column_end` (exclusive) of a table, on one device.

    Attributes:
        row_start: first of its rows.
        row_end: after the last of its rows; None for all rows.
        sharding_type: of its table; None for table- or column-wise.
        cached_share: share of its rows that device memory caches, the table being in host memory; None for device memory.
    """

    table: str
    device: int
    column_start: int
    column_end: int
    row_start: int = 0
    row_end: int | None = None
    sharding_type: ShardingType | None = None
    cached_share: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are not left at their defaults."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }


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
        warning: what this means, and what to do; also that the placer is provisional; empty
            without any of these.
        devices_per_host: of the devices; None where no table is on one host.
        moves: steps from the plan that was in use to this one; only in JSON.
        rows: of each table when the plan was made, by name; empty where that is not known.
    """

    num_devices: int
    placer: str
    shards: tuple[Shard, ...]
    overall_ms: int | float | None = None
    devices: tuple[Mapping[str, int | float], ...] = field(default_factory=tuple)
    costs_of: MeasuredOn | None = None
    differs_in: tuple[Difference, ...] = ()
    warning: str = ""
    devices_per_host: int | None = None
    moves: tuple[Mapping[str, Any], ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter(
            (shard.table, shard.column_start, shard.row_start, shard.sharding_type == "data_parallel" and shard.device)
            for shard in self.shards
        )
        repeated = sorted({entry[0] for entry, count in counts.items() if count > 1})
        if repeated:
            raise InputError(
                f"the plan holds columns of tables {repeated[:5]} twice, so it is unclear which device has them; keep one "
                "entry per table and column range"
            )
        bad = [shard for shard in self.shards if not 0 <= shard.device < self.num_devices]
        if bad:
            raise InputError(
                f"the plan puts {bad[0].table!r} on device {bad[0].device}, but it has devices "
                f"0..{self.num_devices - 1}; correct `device` or `num_devices`"
            )
        empty = [shard for shard in self.shards if not 0 <= shard.column_start < shard.column_end]
        if empty:
            raise InputError(
                f"the plan gives {empty[0].table!r} the columns {empty[0].column_start} to {empty[0].column_end}, "
                "which hold nothing; column_start must be at least 0 and below column_end"
            )

    def to_json(self) -> str:
        """The plan as the text of PLAN.json."""
        return json.dumps(
            {
                "num_devices": self.num_devices,
                **({"devices_per_host": self.devices_per_host} if self.devices_per_host else {}),
                "placer": self.placer,
                "predicted": {"overall_ms": self.overall_ms, "devices": [dict(device) for device in self.devices]},
                "costs_of": self.costs_of.to_json() if self.costs_of else None,
                "differs_in": list(self.differs_in),
                "warning": self.warning or None,
                "shards": [shard.to_json() for shard in self.shards],
                **({"rows": dict(self.rows)} if self.rows else {}),
                **({"moves": [dict(step) for step in self.moves]} if self.moves else {}),
            },
            indent=2,
        )

    def to_csv(self) -> str:
        """One row per shard: table, device, column_start, column_end; its other fields where any shard has them."""
        names = [each.name for each in fields(Shard)] if self.shards_otherwise else ["table", *_NUMBERS]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(astuple(shard)[: len(names)] for shard in self.shards)
        return text.getvalue()

    @property
    def shards_otherwise(self) -> bool:
        """Whether any table is sharded in another way than table- or column-wise in device memory."""
        return any(shard.sharding_type is not None or shard.cached_share is not None for shard in self.shards)

    def placement(self, tables: Tables) -> Placement:
        """This plan for `tables`, however they are sharded.

        Raises:
            ValueError: the plan lacks a table, or does not hold each of its columns and rows as its way to shard does.
        """
        per_host = self.devices_per_host or self.num_devices
        by_table = self.by_table()
        missing = [name for name in tables.names if name not in by_table]
        if missing:
            raise ValueError(_missing_text(missing, len(tables)))
        shardings = tuple(_sharding_of(by_table[name], per_host) for name in tables.names)
        if sum(sharding.sharding_type in ON_EVERY_DEVICE for sharding in shardings) * self.num_devices > _MOST_SHARDS:
            raise ValueError(
                f"the plan has more than {_MOST_SHARDS:,} shards of tables on every device, more than can be compared; "
                "if it is a plan in use, leave it out"
            )
        placement = Placement(shardings, self.num_devices, per_host)
        task = PlacementTask(tables, self.num_devices, 2**62, name=self.placer, devices_per_host=per_host)
        expected = {(name, device, *rows, *columns) for name, device, rows, columns in shard_fields(task, placement)}
        all_rows = dict(zip(tables.names, tables.rows.tolist(), strict=True))
        held = {
            (
                shard.table,
                shard.device,
                shard.row_start,
                all_rows[shard.table] if shard.row_end is None else shard.row_end,
                shard.column_start,
                shard.column_end,
            )
            for shard in self.shards
            if shard.table in all_rows
        }
        if wrong := sorted(expected ^ held):
            name, device, *ranges = wrong[0]
            rows, columns = f"{ranges[0]} to {ranges[1]}", f"{ranges[2]} to {ranges[3]}"
            raise ValueError(
                f"the plan does not hold table {name!r} as its way to shard does: rows {rows}, columns {columns} on device "
                f"{device} are one too many or missing; use the plan that was made for these tables"
            )
        return placement

    def by_table(self) -> dict[str, list[Shard]]:
        """Shards of each table in the order of columns; tables in the order of the plan."""
        tables: dict[str, list[Shard]] = {shard.table: [] for shard in self.shards}
        for shard in sorted(self.shards, key=lambda shard: shard.column_start):
            tables[shard.table].append(shard)
        return tables


def shard_fields(task: PlacementTask, placement: Placement) -> list[tuple[str, int, tuple[int, int], tuple[int, int]]]:
    """Table, device, rows and columns of each shard."""
    placed = Shards.of(task, placement)
    return [
        (task.tables.names[t], device, (rows[0], rows[1]), (columns[0], columns[1]))
        for t, device, rows, columns in zip(
            placed.table.tolist(), placed.device.tolist(), placed.rows.tolist(), placed.columns.tolist(), strict=True
        )
    ]


def _sharding_of(shards: list[Shard], devices_per_host: int) -> TableSharding:
    """How a table is sharded whose shards are these; the caller checks that they are complete."""
    ranges = sorted({(shard.column_start, shard.column_end) for shard in shards})
    sharding_type = shards[0].sharding_type or ("table_wise" if len(ranges) == 1 else "column_wise")
    if sharding_type not in SHARDING_TYPES:
        raise ValueError(
            f"the plan shards {shards[0].table!r} by {sharding_type!r}, which is unknown; choose from "
            f"{', '.join(SHARDING_TYPES)}"
        )
    first = {
        columns: min(each.device for each in shards if (each.column_start, each.column_end) == columns)
        for columns in ranges
    }
    if sharding_type in ON_EVERY_DEVICE:
        where: tuple[int, ...] = ()
    elif sharding_type in ON_ONE_HOST:
        where = tuple(first[columns] // devices_per_host for columns in ranges)
    else:
        where = tuple(first[columns] for columns in ranges)
    columns = tuple(ranges) if sharding_type in SPLIT_BY_COLUMNS else ()
    return TableSharding(sharding_type, columns, where, shards[0].cached_share)


def _missing_text(missing: list[str], num_tables: int) -> str:
    return (
        f"the plan does not place tables {missing[:5]} ({len(missing)} of {num_tables}), so they would have no device; use "
        "the plan that was made for these tables"
    )
