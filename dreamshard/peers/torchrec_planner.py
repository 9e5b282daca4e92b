"""TorchRec's planner (torchrec 1.8.0, `EmbeddingShardingPlanner`), restricted to whole tables on one device each.

It rates a table by its lookups, row bytes and the bandwidths of its `Topology`, and partitions greedily. It measures
nothing and is not trained. Each device offers exactly the task's memory; nothing is reserved for the planner's own
estimates of dense parameters and inputs.
"""

from dataclasses import dataclass

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class TorchRecPlanner:
    """TorchRec's planner as a placer.

    Attributes:
        memory_bytes_per_s: bandwidth of the devices' memory; None, as for `link_bytes_per_s`, for TorchRec's default.
    """

    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    name: str = "torchrec_planner"

    def place(self, task: PlacementTask) -> Placement:
        """Place the tables as TorchRec would.

        Raises:
            NoPlacementError: the planner finds no plan.
            ValueError: torchrec is not installed.
        """
        try:
            from dreamshard.torchrec import planner
        except ImportError as error:
            raise ValueError(
                f"torchrec cannot be imported ({error}), so its planner cannot place tables; install it with "
                "`pip install --no-deps torchrec==1.8.0`, or choose another placer"
            ) from error
        return planner.place(task, memory_bytes_per_s=self.memory_bytes_per_s, link_bytes_per_s=self.link_bytes_per_s)
