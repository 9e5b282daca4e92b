"""Blocks of tables on devices, and the steps from one placement to another.

A block that stays on its device moves nothing, however it is re-split there. A part that several devices hold copies of is
read from one of them, or from none where the device that needs it has a copy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask

Range = tuple[int, int]
"""First and last (exclusive) row or column."""


@dataclass(frozen=True)
class Block:
    """A block of rows and columns of a table, on one device.

    Attributes:
        device_bytes: of device memory, with state, and with gradients of a copy; less than `stored_bytes` if it is cached.
        element_bytes: of one weight and its state, wherever they are.
        row_bytes: of each row beside that.
        cached: whether the rows are in host memory.
    """

    table: str
    device: int
    rows: Range
    columns: Range
    device_bytes: int
    element_bytes: int
    row_bytes: int
    cached: bool = False

    @property
    def stored_bytes(self) -> int:
        """Weights and state."""
        return self.part_bytes(self.rows, self.columns)

    def part_bytes(self, rows: Range, columns: Range) -> int:
        """Weights and state of a part of it."""
        return (rows[1] - rows[0]) * ((columns[1] - columns[0]) * self.element_bytes + self.row_bytes)

    def same_part(self, other: "Block") -> bool:
        """Whether both hold the same part of a table."""
        return (self.table, self.rows, self.columns) == (other.table, other.rows, other.columns)

    def overlap(self, other: "Block") -> tuple[Range, Range] | None:
        """Rows and columns that both hold; None where there are none."""
        rows = max(self.rows[0], other.rows[0]), min(self.rows[1], other.rows[1])
        columns = max(self.columns[0], other.columns[0]), min(self.columns[1], other.columns[1])
        return (rows, columns) if rows[0] < rows[1] and columns[0] < columns[1] else None


Kind = Literal["move", "cut", "load"]


@dataclass(frozen=True)
class Step:
    """A part of a table that a device gets.

    Attributes:
        kind: `move` it from another device; `cut` it, that is re-split it, on its device; `load` a table that is new or of
            another size.
        source: device; None for what is loaded.
    """

    kind: Kind
    table: str
    rows: Range
    columns: Range
    source: int | None
    target: int
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """For a plan."""
        parts = {
            "row_start": self.rows[0],
            "row_end": self.rows[1],
            "column_start": self.columns[0],
            "column_end": self.columns[1],
        }
        return {name: value for name, value in asdict(self).items() if name not in ("rows", "columns")} | parts


Blocks = Mapping[str, Sequence[Block]]
"""The blocks of each table, by its name."""


def blocks_of(task: PlacementTask, placement: Placement) -> dict[str, list[Block]]:
    """The blocks of each of the task's tables."""
    placed = Shards.of(task, placement)
    element_bytes = (task.weight_bytes + task.element_state_bytes).tolist()  # [T]
    row_bytes = task.row_bytes.tolist()  # [T]
    blocks: dict[str, list[Block]] = {name: [] for name in task.tables.names}
    entries = zip(
        placed.table.tolist(),
        placed.device.tolist(),
        placed.rows.tolist(),
        placed.columns.tolist(),
        placed.device_bytes.tolist(),
        (placed.host_bytes > 0).tolist(),
        strict=True,
    )
    for t, device, (row, end_row), (column, end_column), device_bytes, cached in entries:
        name = task.tables.names[t]
        rows, columns = (row, end_row), (column, end_column)
        blocks[name].append(Block(name, device, rows, columns, device_bytes, element_bytes[t], row_bytes[t], cached))
    return blocks


def steps(before: Blocks, after: Blocks) -> tuple[Step, ...]:
    """What changes, by table: moves first, then what is re-split, then what is loaded, the largest first.

    Tables that are only in `before` are dropped, which is no step.
    """
    found: list[Step] = []
    for name, blocks in after.items():
        held = before.get(name, ())
        for block in blocks:
            if block in held:
                continue
            parts = sources(block, held)
            if not parts:
                found.append(Step("load", name, block.rows, block.columns, None, block.device, block.stored_bytes))
            for source, (rows, columns) in parts:
                kind: Kind = "cut" if source.device == block.device else "move"
                part_bytes = source.part_bytes(rows, columns)
                found.append(Step(kind, name, rows, columns, source.device, block.device, part_bytes))
    return tuple(sorted(found, key=lambda step: (get_args(Kind).index(step.kind), -step.memory_bytes)))


def moved_bytes(before: Blocks, after: Blocks) -> int:
    """Of all moves."""
    return sum(step.memory_bytes for step in steps(before, after) if step.kind == "move")


def sources(block: Block, held: Sequence[Block]) -> list[tuple[Block, tuple[Range, Range]]]:
    """The blocks that a block is put together from, each with the rows and columns taken from it.

    Args:
        block: in the new placement.
        held: blocks of the same table in the old one: parts that do not overlap, or copies of all of it.
    """
    copies = [other for other in held[1:] if held[0].same_part(other)]
    if copies:
        local = next((other for other in held if other.device == block.device), None)
        candidates: Iterable[Block] = [local or held[block.device % len(held)]]  # spread over those that have one
    else:
        candidates = held
    return [(other, part) for other in candidates if (part := block.overlap(other)) is not None]
