"""Cost of a training step on other clusters: the same tables placed by each one's figures."""

from dataclasses import dataclass, replace
from typing import Any

from dreamshard.costs import PHASES
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.placement import ON_ONE_HOST
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.testbeds.base import TABLES_SHARE
from dreamshard.workloads import ModelTables


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


_COSTS = ("overall_ms", *(f"{phase}_ms" for phase in PHASES))


def what_if(model: ModelTables, cluster: Cluster, **options: Any) -> dict[str, Any]:
    """Place the tables of a model on a cluster by its figures; `options` are as for `ModelTables.task`.

    Returns:
        The cluster's figures: the slowest device's milliseconds in all and by phase; `balance`, the mean over the largest
        cost of a device; bytes of the fullest device; number of shards. All are None if no placement fits; `infeasible`
        says why.
    """
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
        if task.constraints.all_sharding_types & set(ON_ONE_HOST):  # so hosts must be known
            task = replace(task, devices_per_host=min(spec.devices_per_node, count))
        placer = RooflinePlacer(spec)
        placement = placer.place(task)
    except ValueError as error:
        return figures | {"infeasible": str(error)}
    costs, shards = placer.predict(task, placement), Shards.of(task, placement)
    device_ms = costs.device_ms()  # [D]
    phases_ms = costs.phases_ms[int(device_ms.argmax())].tolist()
    return {
        **figures,
        **dict(zip(_COSTS, [float(device_ms.max()), *phases_ms], strict=True)),
        "balance": float(device_ms.mean() / device_ms.max()),
        "largest_memory_bytes": int(shards.memory_bytes().max()),
        "shards": len(shards.device),
    }
