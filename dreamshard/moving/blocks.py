"""Blocks of tables on devices, and which parts of them move when a placement changes.

A block that stays on its device moves nothing, however it is re-split there. A part that several devices hold copies of is
read from one of them, or from none where the device that needs it has a copy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dreamshard.placed_shards import placed_shards
from dreamshard.sharding import ShardedPlacement
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


@dataclass(frozen=True)
class Move:
    """A part of a table that one device gets from another."""

    table: str
    rows: Range
    columns: Range
    source: int
    target: int
    memory_bytes: int


Blocks = Mapping[str, Sequence[Block]]
"""The blocks of each table, by its name."""


def blocks_of(task: PlacementTask, placement: ShardedPlacement) -> dict[str, list[Block]]:
    """The blocks of each of the task's tables."""
    placed = placed_shards(task, placement)
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


def moves(before: Blocks, after: Blocks) -> list[Move]:
    """What has to move, largest first; tables that are not in both are loaded or dropped, which is no move."""
    moved = [
        move
        for name, blocks in after.items()
        for block in blocks
        for source, (rows, columns) in sources(block, before.get(name, ()))
        if source.device != block.device
        for move in [Move(name, rows, columns, source.device, block.device, source.part_bytes(rows, columns))]
    ]
    return sorted(moved, key=lambda move: -move.memory_bytes)


def moved_bytes(before: Blocks, after: Blocks) -> int:
    """Of all moves."""
    return sum(move.memory_bytes for move in moves(before, after))


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
