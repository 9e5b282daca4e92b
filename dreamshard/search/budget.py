"""How much a search may do: counted in work, so that a task gets the same placement on every machine; a limit only cuts it.

The unit of work is a step of local search by the structured cost network on few tables, which takes about 0.4 ms on an idle
core. Steps by other cost models, or among many tables, count as many units as their time has. Starting placements, and what
decides whether tables are split, are always finished and count for nothing.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dreamshard.tasks import PlacementTask

_UNITS_PER_MS = 2.5
_MOVES_PER_UNIT = 20_000  # moves and swaps that are ranked: as many take as long as the rest of a step

logger = logging.getLogger(__name__)


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
    """What is left of one search.

    Attributes:
        work: units that may be spent.
        until: time of the clock at which it ends whatever is left; infinite for no limit.
        clock: seconds.
        spent: units so far.
        is_cut: whether time ended it while there was work left, so that another machine may find another placement.
    """

    work: float
    until: float = math.inf
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)
    spent: float = 0.0
    is_cut: bool = False

    @classmethod
    def of(
        cls,
        task: PlacementTask,
        budget_ms: float | None = None,
        *,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "Budget":
        """Work, and from now on a limit of time.

        Args:
            task: to be placed.
            budget_ms: as much work as an idle core does in this time, whatever the machine; None for the task's own.
            max_seconds: after which the search is cut; None for never. It adds no work.
            clock: seconds; looked at only where there is a limit.
        """
        work = default_work(task) if budget_ms is None else _UNITS_PER_MS * budget_ms
        return cls(work, math.inf if max_seconds is None else clock() + max_seconds, clock)

    def share(self, part: float) -> "Budget":
        """A budget of this part of the work, and of no more time; what it spends is spent here with `take`."""
        return Budget(part * self.work, self.until, self.clock)

    def take(self, part: "Budget") -> None:
        """Count what a part spent."""
        self.spent += part.spent
        self.is_cut |= part.is_cut

    def spend(self, units: float) -> None:
        """Count work, done whatever is left."""
        self.spent += units

    def is_over(self) -> bool:
        """Whether to stop."""
        if self.spent >= self.work or self.is_cut:
            return True
        if self.until < math.inf and self.clock() >= self.until:
            self.is_cut = True
        return self.is_cut

    def cut_note(self, task: PlacementTask) -> str:
        """What to say if time ended the search; empty if it did not."""
        if not self.is_cut:
            return ""
        return (
            f"the time limit cut the search for a placement of {task.name or 'the tables'} after "
            f"{100 * self.spent / self.work:.0f} % of its work, so a faster or idler machine may find another placement; "
            "give it more time, or no limit"
        )

    def say_if_cut(self, task: PlacementTask) -> None:
        """Warn if time ended the search."""
        if note := self.cut_note(task):
            logger.warning("%s", note)
