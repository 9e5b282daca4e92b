"""TorchRec's planner (torchrec 1.8.0, `EmbeddingShardingPlanner`): whole tables, column shards, or every way to shard that
it considers.

It rates a table by its lookups, row bytes and the bandwidths of its `Topology`, and partitions greedily. It measures
nothing and is not trained. Each device offers exactly the task's memory; nothing is reserved for the planner's own
estimates of dense parameters and inputs.

TorchRec splits no table into columns narrower than its `min_partition`, 128 by default, which leaves most tables whole, and
it considers one width per table. `torchrec_planner_columns` therefore lets it plan three times, with halves, quarters and
eighths of each table allowed beside the whole one, and takes the plan that TorchRec rates best.
"""

from dataclasses import dataclass
from typing import Any

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask

WHOLE, COLUMNS = "torchrec_planner", "torchrec_planner_columns"
"""Names of the placer that keeps tables whole, and of the one that may split them by columns."""


@dataclass(frozen=True)
class TorchRecPlanner:
    """TorchRec's planner as a placer.

    Attributes:
        memory_bytes_per_s: bandwidth of the devices' memory; None, as for the others, for TorchRec's default.
        link_bytes_per_s: bandwidth between devices of a host.
        network_bytes_per_s: bandwidth of each device between hosts.
        host_bytes_per_s: bandwidth to the host's memory.
        devices_per_host: where a task does not say; None for all devices on one host.
        timeout_s: after which it returns its best plan so far, unless of whole tables; None for no limit.
        name: `torchrec_planner_columns` lets `place` split tables by columns.
    """

    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    devices_per_host: int | None = None
    timeout_s: int | None = None
    name: str = WHOLE

    @classmethod
    def on(cls, spec: AcceleratorSpec, name: str = WHOLE) -> "TorchRecPlanner":
        """With the bandwidths and the hosts of a preset."""
        return cls(
            spec.memory_bytes_per_s,
            spec.link_bytes_per_s,
            spec.network_bytes_per_s,
            spec.host_bytes_per_s,
            spec.devices_per_node,
            name=name,
        )

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Place the tables as TorchRec would; the task's constraints of single tables are not TorchRec's.

        Tables are whole, or in columns if the name says so, or sharded in every way that TorchRec considers by default if the
        task allows more than columns.

        Raises:
            NoPlacementError: the planner finds no plan.
            ValueError: torchrec is not installed.
        """
        planner = self._planner()
        placement: Placement = planner.place(
            task, self.bandwidths(), self.devices_per_host, self.timeout_s, columns=self.name == COLUMNS
        )
        return placement

    def bandwidths(self) -> Any:
        """These as what TorchRec's topology is made of (`dreamshard.torchrec.planner`)."""
        from dreamshard.torchrec.planner import Bandwidths

        return Bandwidths(
            memory=self.memory_bytes_per_s,
            link=self.link_bytes_per_s,
            network=self.network_bytes_per_s,
            host_memory=self.host_bytes_per_s,
        )

    @staticmethod
    def _planner() -> Any:
        try:
            from dreamshard.torchrec import planner
        except ImportError as error:
            raise ValueError(
                f"torchrec cannot be imported ({error}), so its planner cannot place tables; install it with "
                "`pip install --no-deps torchrec==1.8.0`, or choose another placer"
            ) from error
        return planner
