"""`dreamshard place --current`: the plan in use, what a new one moves, and whether that is worth it."""

from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli import terminal

if TYPE_CHECKING:
    from dreamshard.moving import InUse
    from dreamshard.plan import Plan
    from dreamshard.sharding import ShardedPlacement
    from dreamshard.tasks import PlacementTask


def read_in_use(path: Path, task: "PlacementTask") -> "InUse":
    """What a plan in use holds of the task's tables; the plan is dreamshard's or TorchRec's.

    Raises:
        ValueError: the file is missing, no plan, or one of other tables.
    """
    from dreamshard.moving import in_use

    return in_use(read_plan_of_any_kind(path), task)


def read_plan_of_any_kind(path: Path) -> "Plan":
    """A PLAN.json, or TorchRec's own plan as JSON.

    Raises:
        ValueError: the file is missing, or is neither.
    """
    from dreamshard.plan import parse_plan, read_plan

    if not path.is_file():
        return read_plan(path)  # says so
    text = path.read_text(encoding="utf-8")
    return parse_plan(text, str(path))


def with_kept_names(task: "PlacementTask", placement: "ShardedPlacement", current: "InUse") -> "ShardedPlacement":
    """The placement with equal devices named so that less moves."""
    from dreamshard.moving import renamed

    return renamed(task, placement, current.blocks)


def show_moves(task: "PlacementTask", current: "InUse", placement: "ShardedPlacement") -> None:
    """Say which tables move, and how many bytes."""
    from dreamshard.formatting import gib
    from dreamshard.moving import blocks_of, moves

    moved = moves(current.blocks, blocks_of(task, placement))
    total = sum(move.memory_bytes for move in moved)
    tables = {move.table for move in moved}
    sizes = dict(
        zip(task.tables.names, zip(task.tables.rows.tolist(), task.tables.dim.tolist(), strict=True), strict=True)
    )
    ranges = f" in {len(moved)} parts" if len(moved) > len(tables) else ""
    loaded = [
        f"{len(names)} are {how}"
        for names, how in ((current.new, "new"), (current.changed, "of another size"))
        if names
    ]
    more = f"; {' and '.join(loaded)}" if loaded else ""
    terminal.note(
        f"{len(tables)} of {len(current.blocks)} tables move{ranges}, {gib(total)} in all{more}{':' if moved else ''}"
    )
    for move in moved:
        rows, dim = sizes[move.table]
        what = move.table
        if move.columns != (0, dim):
            what += f", columns {move.columns[0]} to {move.columns[1]}"
        if move.rows != (0, rows):
            what += f", rows {move.rows[0]} to {move.rows[1]}"
        terminal.note(f"  {what}: device {move.source} -> {move.target}, {move.memory_bytes / 2**20:.4g} MiB")
