"""What rules of thumb, trained models and published rivals have in common."""

from typing import Protocol, runtime_checkable

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask


class NoPlacementError(ValueError):
    """A placer found no placement that fits the devices' memory."""


@runtime_checkable
class Placer(Protocol):
    """Turns a task into a placement."""

    @property
    def name(self) -> str:
        """The placer's name in reports and on the command line."""

    def place(self, task: PlacementTask) -> Placement:
        """A legal placement.

        Raises:
            NoPlacementError: none was found.
        """
