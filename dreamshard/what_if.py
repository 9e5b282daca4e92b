"""What a training step would cost on other clusters: the same tables placed by each one's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dreamshard.costs import PHASES
from dreamshard.placement import device_memory_bytes
from dreamshard.search import RooflinePlacer
from dreamshard.tables import DEFAULT_BATCH, Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.checked import checked
from dreamshard.testbeds.accelerators.links import index_all_to_all_s
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
from dreamshard.testbeds.capacity import TABLES_SHARE


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices of one kind.

    Attributes:
        called: how the user calls the hardware, e.g. a preset's name or a file's path.
        spec: its figures.
        num_devices: in all.
    """

    called: str
    spec: AcceleratorSpec
    num_devices: int

    @property
    def num_hosts(self) -> int:
        """As many devices share a host as the hardware has."""
        return -(-self.num_devices // self.spec.devices_per_node)

    @property
    def table_bytes(self) -> int:
        """Room for tables on each device."""
        return round(TABLES_SHARE * self.spec.memory_bytes)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step costs on a cluster, as its figures have it.

    Attributes:
        cluster: that the tables are placed on.
        checked: how far its figures have been compared with measurements.
        infeasible: why no placement fits; empty where one does. Then the fields below are 0.
        overall_ms: the slowest device's lookups, exchanges and updates.
        phases_ms: of the slowest device, in the order of `PHASES`.
        balance: mean over the largest cost of a device; 1 where all are equal.
        index_ms: the all-to-all of the indices, which TorchRec hides behind the computation of another batch.
        largest_bytes: of tables on the fullest device.
        num_shards: column shards and whole tables.
    """

    cluster: Cluster
    checked: str
    infeasible: str = ""
    overall_ms: float = 0.0
    phases_ms: tuple[float, ...] = (0.0,) * len(PHASES)
    balance: float = 0.0
    index_ms: float = 0.0
    largest_bytes: int = 0
    num_shards: int = 0


def what_if(
    tables: Tables,
    clusters: Sequence[Cluster],
    *,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    batch_size: int = DEFAULT_BATCH,
    budget_ms: float | None = None,
) -> list[Estimate]:
    """Place the tables on each cluster by its figures; `budget_ms` limits the search for each."""
    like = {"precision": precision, "optimizer": optimizer, "batch_size": batch_size}
    return [_estimate(tables, cluster, budget_ms, like) for cluster in clusters]


def _estimate(tables: Tables, cluster: Cluster, budget_ms: float | None, like: Mapping[str, object]) -> Estimate:
    estimate = Estimate(cluster=cluster, checked=checked(cluster.spec))
    try:
        task = PlacementTask(tables, cluster.num_devices, cluster.table_bytes, name="the model", **like)  # type: ignore[arg-type]
        placer = RooflinePlacer(cluster.spec)
        placement = placer.place(task, budget_ms)
    except ValueError as error:
        return replace(estimate, infeasible=str(error))
    costs = placer.predict(task, placement)
    device_ms = costs.device_ms()  # [D]
    whole, shards = task.sharded(placement)
    held = device_memory_bytes(whole.table_bytes, shards.device[None], task.num_devices)[0]  # [D]
    return replace(
        estimate,
        overall_ms=float(device_ms.max()),
        phases_ms=tuple(costs.phases_ms()[int(device_ms.argmax())].tolist()),
        balance=float(device_ms.mean() / device_ms.max()),
        index_ms=_index_ms(whole, shards.device, cluster.spec, placer.measured_on(task).setting.batch_size),
        largest_bytes=int(held.max()),
        num_shards=len(shards.device),
    )


def _index_ms(task: PlacementTask, device: torch.Tensor, spec: AcceleratorSpec, batch_size: int) -> float:
    """Milliseconds of the all-to-all of the indices; a column shard needs all lookups of its table."""
    lookups = torch.zeros(task.num_devices, dtype=torch.float64)
    lookups.index_add_(0, device, task.tables.pooling_factor.double() * batch_size)
    counts = torch.bincount(device, minlength=task.num_devices).double()
    return 1e3 * float(index_all_to_all_s(lookups, counts, batch_size, spec, task.devices_per_host).max())
