"""Cost of a training step on other clusters: the same tables placed by each one's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dreamshard.costs import PHASES
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import collective_s
from dreamshard.placement import ON_ONE_HOST
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tables import DEFAULT_BATCH
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


_COSTS = ("overall_ms", *(f"{phase}_ms" for phase in PHASES), "index_exchange_ms")


def what_if(model: ModelTables, clusters: Sequence[Cluster], **options: Any) -> list[dict[str, Any]]:
    """Place the tables of a model on each cluster by its figures; `options` are as for `ModelTables.task`.

    Returns:
        The figures of each cluster: the slowest device's milliseconds in all, by phase, and of the all-to-all of the
        indices, which TorchRec hides behind the computation of another batch; `balance`, the mean over the largest cost of
        a device; bytes of the fullest device; number of shards. All are None if no placement fits; `infeasible` says why.
    """
    return [_figures(model, cluster, options) for cluster in clusters]


def _figures(model: ModelTables, cluster: Cluster, options: Mapping[str, Any]) -> dict[str, Any]:
    spec, count = cluster.spec, cluster.num_devices
    memory_bytes = round(TABLES_SHARE * spec.memory_bytes)
    figures = {
        "hardware": cluster.called,
        "name": spec.name,
        "num_devices": count,
        "num_hosts": -(-count // spec.devices_per_node),
        "memory_bytes": memory_bytes,
        **dict.fromkeys((*_COSTS, "balance", "largest_memory_bytes", "shards", "infeasible")),
    }
    try:
        task = model.task(count, memory_bytes, name="the model", **options)
        per_host = task.devices_per_host or spec.devices_per_node
        if task.constraints.all_sharding_types & set(ON_ONE_HOST):  # so hosts must be known
            task = replace(task, devices_per_host=min(spec.devices_per_node, count))
        placer = RooflinePlacer(spec)
        placement = placer.place(task)
    except ValueError as error:
        return figures | {"infeasible": str(error)}
    costs, shards = placer.predict(task, placement), Shards.of(task, placement)
    device_ms = costs.device_ms()  # [D]
    phases_ms = costs.phases_ms[int(device_ms.argmax())].tolist()
    index_ms = 1e3 * _index_exchange_s(shards, task.batch_size or DEFAULT_BATCH, spec, per_host)
    return {
        **figures,
        **dict(zip(_COSTS, [float(device_ms.max()), *phases_ms, index_ms], strict=True)),
        "balance": float(device_ms.mean() / device_ms.max()),
        "largest_memory_bytes": int(shards.memory_bytes().max()),
        "shards": len(shards.device),
    }


def _index_exchange_s(shards: Shards, batch_size: int, spec: AcceleratorSpec, devices_per_host: int) -> float:
    """Seconds of the exchange of indices, with which every shard but data-parallel copies gets the lookups of its rows.

    It is none of the paper's four phases: TorchRec's pipeline hides it behind the computation of the batch before. Each
    device receives one int64 per lookup of its tables and one per sample and table (the lengths).
    """
    received = ~shards.is_any("data_parallel") * batch_size * (shards.tables.pooling_factor.double() + 1)
    most = shards.per_device(received).max()
    return float(collective_s(_LOOKUP_BYTES * most, shards.num_devices, spec, devices_per_host))
