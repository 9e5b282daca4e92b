"""How much a search may do: counted in work, so that a task gets the same placement on every machine.

The unit of work is a step of local search by the structured cost network on few tables, which takes about 0.4 ms on an idle
core. Steps by other cost models, or among many tables, count as many units as their time has. Starting placements, and what
decides whether tables are split, are always finished and count for nothing.
"""

from dataclasses import dataclass

from dreamshard.tasks import PlacementTask

_UNITS_PER_MS = 2.5
_MOVES_PER_UNIT = 20_000  # moves and swaps that are ranked: as many take as long as the rest of a step


def default_work(task: PlacementTask) -> float:
    """Units for a task: 100 for small ones, growing with tables and devices: 400 at 200 x 8, 2,100 at 800 x 128."""
    tables, devices = len(task.tables), task.num_devices
    return _UNITS_PER_MS * (40 + 0.8 * max(tables - 50, 0) + 0.002 * tables * devices)


def step_units(num_tables: int, num_devices: int, evaluator_units: float) -> float:
    """Units of one step.

    Args:
        num_tables: that the step may move.
        num_devices: `D`.
        evaluator_units: of a step among few tables; see `ShardEvaluator.step_units`.
    """
    moves = num_tables / num_devices * (num_tables + num_devices)
    return evaluator_units * (1 + moves / _MOVES_PER_UNIT)


@dataclass
class Budget:
    """Work of one search.

    Attributes:
        work: units that may be spent.
        spent: units so far.
    """

    work: float
    spent: float = 0.0

    @classmethod
    def of(cls, task: PlacementTask, budget_ms: float | None = None) -> "Budget":
        """As much work as an idle core does in `budget_ms`, whatever the machine; None for the task's own."""
        return cls(default_work(task) if budget_ms is None else _UNITS_PER_MS * budget_ms)

    def share(self, part: float) -> "Budget":
        """A budget of this part of the work; what it spends has to be spent here, too."""
        return Budget(part * self.work)

    def spend(self, units: float) -> None:
        """Count work, done whatever is left."""
        self.spent += units

    def is_over(self) -> bool:
        """Whether to stop."""
        return self.spent >= self.work
