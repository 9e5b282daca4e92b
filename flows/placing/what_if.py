"""Cost of a training step on other clusters: the same tables placed by each one's figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import collective_s
from dreamshard.placement import ON_ONE_HOST
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TABLES_SHARE
from dreamshard.workloads import ModelTables

_LOOKUP_BYTES = 8  # per index and per length: int64


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
    """Cost of a step on a cluster, by its figures.

    Attributes:
        overall_ms: the slowest device's lookups, exchanges and updates.
        phases_ms: of the slowest device, in the order of `PHASES`.
        balance: mean over the largest cost of a device; 1 if all are equal.
        index_ms: the all-to-all of the indices, which TorchRec hides behind the computation of another batch.
        largest_bytes: of tables on the fullest device.
        num_shards: of all devices: whole tables, columns, blocks of rows, copies.
    """

    overall_ms: float
    phases_ms: tuple[float, ...]
    balance: float
    index_ms: float
    largest_bytes: int
    num_shards: int


def what_if(model: ModelTables, clusters: Sequence[Cluster], **options: Any) -> list[Estimate | str]:
    """Place the tables of a model on each cluster by its figures; `options` are as for `ModelTables.task`.

    Returns:
        For each cluster an estimate, or the reason why no placement fits.
    """
    estimates: list[Estimate | str] = []
    for cluster in clusters:
        try:
            task = model.task(cluster.num_devices, cluster.table_bytes, name="the model", **options)
            estimates.append(_estimate(task, cluster.spec))
        except ValueError as error:
            estimates.append(str(error))
    return estimates


def _estimate(task: PlacementTask, spec: AcceleratorSpec) -> Estimate:
    per_host = task.devices_per_host or spec.devices_per_node
    if task.constraints.all_sharding_types & set(ON_ONE_HOST):  # so hosts must be known
        task = replace(task, devices_per_host=min(spec.devices_per_node, task.num_devices))
    placer = RooflinePlacer(spec)
    placement = placer.place(task)
    costs, shards = placer.predict(task, placement), Shards.of(task, placement)
    device_ms = costs.device_ms()  # [D]
    return Estimate(
        overall_ms=float(device_ms.max()),
        phases_ms=tuple(costs.phases_ms[int(device_ms.argmax())].tolist()),
        balance=float(device_ms.mean() / device_ms.max()),
        index_ms=1e3 * _index_exchange_s(shards, task.batch_size or DEFAULT_BATCH, spec, per_host),
        largest_bytes=int(shards.memory_bytes().max()),
        num_shards=len(shards.device),
    )


def _index_exchange_s(shards: Shards, batch_size: int, spec: AcceleratorSpec, devices_per_host: int) -> float:
    """Seconds of the exchange of indices, with which every shard but data-parallel copies gets the lookups of its rows.

    It is none of the paper's four phases: TorchRec's pipeline hides it behind the computation of the batch before. Each
    device receives one int64 per lookup of its tables and one per sample and table (the lengths).
    """
    received = ~shards.is_any("data_parallel") * batch_size * (shards.tables.pooling_factor.double() + 1)
    most = shards.per_device(received).max()
    return float(collective_s(_LOOKUP_BYTES * most, shards.num_devices, spec, devices_per_host))
