"""Results of a sweep that was never run."""

from typing import Any

from dreamshard.sweep import CellResult


def cell_result(**changes: Any) -> CellResult:
    """A placer without a placement of one task; `changes` of its fields."""
    fields: dict[str, Any] = {
        **dict.fromkeys(("source", "placer", "task"), ""),
        **dict.fromkeys(("trained", "placed"), "8x2"),
        **dict.fromkeys(("budget", "seed"), 0),
        "experiment": "sizes",
        "dims": "dim16",
        "split": "validation",
        "testbed": "simulated",
        "is_exact": True,
    }
    return CellResult(**fields | changes)
