"""Room for tables that must be copied to every rank, since fbgemm's fused operators refuse their columns."""

from dreamshard.constraints import Constraints
from dreamshard.formatting import gib
from dreamshard.model_tables import ModelTable, ModelTables
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW,
    BYTES_PER_ROW_STATE,
    BYTES_PER_WEIGHT,
    Optimizer,
    Precision,
)


def check_copies(
    model: ModelTables,
    constraints: Constraints,
    optimizer: Optimizer,
    room_bytes: int,
    precision: Precision | None = None,
) -> None:
    """Refuse tables whose columns are no multiple of 4 where copies of them exceed a device.

    Args:
        model: whose tables are to be placed.
        constraints: as narrowed to what TorchRec runs.
        optimizer: whose state a copy has, too.
        room_bytes: for tables on a device.
        precision: of all weights; None for each table's own.

    Raises:
        ValueError: there is too little room.
    """
    copies = {
        name: _copy_bytes(table, precision or table.precision, optimizer)
        for name, table in model.by_name.items()
        if table.dim != table.planned_dim and constraints.sharding_types_for(name) == ("data_parallel",)
    }
    if sum(copies.values()) <= room_bytes:
        return
    name = max(copies, key=lambda each: copies[each])
    table = model.by_name[name]
    others = f", with {len(copies) - 1} more such tables {gib(sum(copies.values()))}" if len(copies) > 1 else ""
    raise ValueError(
        f"table {name!r} has {table.dim} columns, which fbgemm's fused operator refuses, so it could only be copied to every "
        f"rank, but a copy needs {gib(copies[name])}{others}, more than the {gib(room_bytes)} of a device; widen it to "
        f"{table.planned_dim} columns to have it sharded"
    )


def _copy_bytes(table: ModelTable, precision: Precision, optimizer: Optimizer) -> int:
    per_row = table.planned_dim * (BYTES_PER_WEIGHT[precision] + BYTES_PER_ELEMENT_STATE[optimizer])
    return table.rows * (per_row + BYTES_PER_ROW[precision] + BYTES_PER_ROW_STATE[optimizer])
