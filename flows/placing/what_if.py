"""Cost of a training step on other clusters: the same tables placed by each one's figures, as `place --placer prior` does."""

from dataclasses import dataclass
from typing import Any

import torch

from dreamshard.costs import PHASES
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import collective_s
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import NoPlacementError
from dreamshard.workloads import ModelTables
from flows.forms.options import PlaceOptions, WhatIfOptions
from flows.placing import request
from flows.placing.placers import PRIOR
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices of one kind.

    Attributes:
        called: how the user calls the hardware, e.g. a preset's name or a file's path.
        spec: its figures.
        num_devices: in all.
        group: neighbouring devices that hold all tables together; other groups hold replicas, as TorchRec's
            `DMPCollection` with `use_inter_host_allreduce` has them.
    """

    called: str
    spec: AcceleratorSpec
    num_devices: int
    group: int

    def sync_ms(self, num_bytes: int) -> float:
        """Milliseconds in which replicas of so many bytes of a device average their weights and states."""
        replicas, near = self.num_devices // self.group, max(1, self.spec.devices_per_node // self.group)
        if replicas == 1:
            return 0.0
        return 1e3 * float(collective_s(torch.tensor(float(num_bytes)), replicas, self.spec, near, "all_reduce"))


_COSTS = ("overall_ms", *(f"{phase}_ms" for phase in PHASES), "sync_ms")


def what_if(
    store: Store, options: WhatIfOptions, cluster: Cluster, model: ModelTables, note: request.Note
) -> dict[str, Any]:
    """Place the tables on a cluster by its figures; a group of it places its share of the batch.

    Returns:
        The cluster's figures: the slowest device's milliseconds in all and by phase, with its share of a sync of replicas;
        `balance`, the mean over the largest cost of a device; bytes of the fullest device; number of shards. All are None
        if no placement fits; `infeasible` says why.

    Raises:
        ValueError: the options are wrong.
    """
    spec, group = cluster.spec, cluster.group
    fields = options.model_dump(exclude={"hardware", "sync_every"}) | {
        "batch_size": -(-(options.batch_size or DEFAULT_BATCH) * group // cluster.num_devices)
    }
    asked = PlaceOptions(**fields, hardware=cluster.called, devices=group, placer=PRIOR)
    checked = request.check(store, asked, note, model=model)
    figures = {
        "hardware": cluster.called,
        "name": spec.name,
        "num_devices": cluster.num_devices,
        "group": group,
        "num_hosts": -(-cluster.num_devices // spec.devices_per_node),
        "memory_bytes": checked.task.memory_bytes,
        **dict.fromkeys((*_COSTS, "balance", "largest_memory_bytes", "shards", "infeasible")),
    }
    try:
        plan = request.place(store, checked, note).plan
    except NoPlacementError as error:
        return figures | {"infeasible": str(error)}
    devices = plan.predicted.devices
    phases_ms = torch.tensor([[device[f"{phase}_ms"] for phase in PHASES] for device in devices])  # [D, 4]
    device_ms, largest = phases_ms.sum(dim=1), max(int(device["memory_bytes"]) for device in devices)
    sync_ms = cluster.sync_ms(largest) / options.sync_every
    costs = (plan.predicted.overall_ms or 0) + sync_ms, *phases_ms[int(device_ms.argmax())].tolist(), sync_ms
    return {
        **figures,
        **dict(zip(_COSTS, costs, strict=True)),
        "balance": float(device_ms.mean() / device_ms.max()),
        "largest_memory_bytes": largest,
        "shards": sum(int(device["tables"]) for device in devices),
    }
