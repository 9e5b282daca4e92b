"""What moving is worth: milliseconds of every step against bytes moved once."""

from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.placement import Placement


@dataclass(frozen=True, kw_only=True)
class MovePrice:
    """What a byte that moves costs.

    Attributes:
        steps_until_next: training steps until tables are moved again, so how often a gain is had.
        bytes_per_s: moved by all devices together, while no step runs.
    """

    steps_until_next: int | float
    bytes_per_s: int | float

    def __post_init__(self) -> None:
        if not (self.steps_until_next > 0 and self.bytes_per_s > 0):
            raise ValueError(
                f"{self.steps_until_next} steps and {self.bytes_per_s} bytes/s give moving no price; both must be above zero"
            )

    def move_ms(self, moved_bytes: int) -> float:
        """Milliseconds for which training stops."""
        return 1e3 * moved_bytes / self.bytes_per_s

    def total_ms(self, overall_ms: float, moved_bytes: int) -> float:
        """Milliseconds of all steps and of moving."""
        return overall_ms * self.steps_until_next + self.move_ms(moved_bytes)


@dataclass(frozen=True)
class Point:
    """A legal placement on the way.

    Attributes:
        overall_ms: predicted cost of a step.
        moved_bytes: from the plan in use.
    """

    placement: Placement
    overall_ms: float
    moved_bytes: int


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points than which none moves as little and costs as little, by bytes moved."""
    result: list[Point] = []
    for point in sorted(points, key=lambda point: (point.moved_bytes, point.overall_ms)):
        if not result or point.overall_ms < result[-1].overall_ms:
            result.append(point)
    return result
