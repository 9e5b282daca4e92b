"""What every placer has in common, be it a rule of thumb, a trained model or a published rival."""

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
        """How tables and the command line call it."""
        ...

    def place(self, task: PlacementTask) -> Placement:
        """A legal placement.

        Raises:
            NoPlacementError: none was found.
        """
        ...
