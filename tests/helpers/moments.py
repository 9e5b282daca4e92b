"""When to kill a command: a moment within a stage of its chain."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.home_state import stage_of

LOOK_S = 0.02
"""How often to look which stage a command is in."""


@dataclass
class Moment:
    """When to kill: so many seconds into a stage, or when that is over.

    Attributes:
        home: of the command.
        began: when the command was started, in seconds since 1970.
        stages: of a chain, in their order.
        target: the stage.
        delay_s: seconds into it.
    """

    home: Path
    began: float
    stages: Sequence[str]
    target: str
    delay_s: float
    _reached: float | None = None

    def has_come(self) -> bool:
        """Whether it is time, or too late."""
        stage, now = stage_of(self.home, self.began), time.monotonic()
        if stage == self.target and self._reached is None:
            self._reached = now
        if self._reached is not None:
            return stage != self.target or now - self._reached >= self.delay_s
        return stage in self.stages and self.stages.index(stage) > self.stages.index(self.target)
