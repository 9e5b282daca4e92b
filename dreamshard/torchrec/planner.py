"""TorchRec's planner as a rival, and its estimate of compute times."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    PlannerError,
    ShardEstimator,
    ShardingOption,
    Storage,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dreamshard.formatting import gib
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.tables import Precision, Tables
from dreamshard.tasks import PlacementTask


def place(
    task: PlacementTask, *, memory_bytes_per_s: float | None = None, link_bytes_per_s: float | None = None
) -> Placement:
    """Place tables by TorchRec's `EmbeddingShardingPlanner`, each whole and in device memory (fused kernel).

    The devices share the batch in which the tables' lookups were counted.

    Args:
        task: without devices per host, all devices share one.
        memory_bytes_per_s: bandwidth of device memory; None for TorchRec's default of 897 GiB/s.
        link_bytes_per_s: bandwidth between devices; None for TorchRec's default of 600 GiB/s.

    Raises:
        NoPlacementError: the planner finds no plan.
    """
    per_host = min(task.num_devices, task.devices_per_host or task.num_devices)
    topology = _topology(task.num_devices, per_host, task.memory_bytes, memory_bytes_per_s, link_bytes_per_s)
    names, constraints = _constraints(task.tables)
    batch_size = max(1, round(_batch_size(task.tables) / task.num_devices))
    sizes = _TableBytes(dict(zip(names, task.table_bytes.tolist(), strict=True)))
    speed = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=topology, constraints=constraints)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(topology, batch_size, constraints, [speed, sizes]),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=[],
        constraints=constraints,
        debug=False,
    )
    try:
        plan = planner.plan(_module(task.tables, task.precision, names), [EmbeddingBagCollectionSharder()])
    except PlannerError as error:
        raise NoPlacementError(
            f"TorchRec's planner found no plan of whole tables for the {len(names)} tables of {task.name} on "
            f"{task.num_devices} devices of {gib(task.memory_bytes)}; give the devices more memory, add one, or choose "
            "another placer"
        ) from error
    parameters = plan.plan[""]
    return Placement(torch.tensor([parameters[name].ranks[0] for name in names]), task.num_devices)


def estimated_compute_ms(
    tables: Tables, batch_size: int, precision: Precision, memory_bytes_per_s: float
) -> Float[Tensor, " T"]:
    """Milliseconds of forward and backward per table by TorchRec's `EmbeddingPerfEstimator`.

    A shard's estimate is the sum over its tables; TorchRec models no effect of fusing them. A table's time is, over the
    bandwidth of device memory,

        (8 x lookups + weight_bytes x (lookups x max(dim, 32) + min(lookups, batch) x dim)) x penalty x (1 + 2)

    with a penalty of 1.75 below dim 64 and 1.15 below 128, and backward twice forward. It assumes int64 indices and pooled
    vectors as wide as weights, and ignores reuse of rows and the optimizer. Its bandwidths are bytes per millisecond, so
    its times are milliseconds, although its docstrings call them seconds.

    Args:
        tables: each whole, in device memory (fused kernel).
        batch_size: samples per pass.
        precision: of the weights.
        memory_bytes_per_s: bandwidth of device memory.
    """
    names, constraints = _constraints(tables)
    topology = _topology(1, 1, 2**62, memory_bytes_per_s, None)
    speed = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=topology, constraints=constraints)
    options = EmbeddingEnumerator(topology, batch_size, constraints, [speed]).enumerate(
        _module(tables, precision, names), [EmbeddingBagCollectionSharder()]
    )
    perfs = {option.name: option.shards[0].perf for option in options}
    return torch.tensor([perfs[name].fwd_compute + perfs[name].bwd_compute for name in names], dtype=torch.float64)


class _TableBytes(ShardEstimator):  # type: ignore[misc]  # torchrec is untyped here
    """The task's bytes per table, instead of TorchRec's estimate of everything on a device."""

    def __init__(self, by_name: Mapping[str, int]) -> None:
        self.by_name = by_name

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Set the storage of each option, which is one whole table."""
        for option in sharding_options:
            option.shards[0].storage = Storage(hbm=self.by_name[option.name], ddr=0)


def _topology(
    num_devices: int,
    devices_per_host: int,
    memory_bytes: int,
    memory_bytes_per_s: float | None,
    link_bytes_per_s: float | None,
) -> Topology:
    """Devices on hosts; None for TorchRec's defaults, which hold for the network between hosts."""
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=num_devices, local_world_size=devices_per_host, hbm_cap_bytes=memory_bytes),
        HardwareConfig(  # in bytes/ms
            hbm_mem_bw=memory_bytes_per_s and memory_bytes_per_s / 1000,
            intra_host_bw=link_bytes_per_s and link_bytes_per_s / 1000,
        ),
        KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True),
    )


def _constraints(tables: Tables) -> tuple[list[str], dict[str, ParameterConstraints]]:
    """Names for the tables, and constraints that keep each whole and in device memory."""
    names = [f"t{t}" for t in range(len(tables))]
    return names, {
        name: ParameterConstraints(
            sharding_types=["table_wise"], compute_kernels=["fused"], pooling_factors=[max(pooling, 1e-6)]
        )
        for name, pooling in zip(names, tables.pooling_factor.tolist(), strict=True)
    }


def _module(tables: Tables, precision: Precision, names: list[str]) -> EmbeddingBagCollection:
    """A TorchRec module of the tables that takes no memory."""
    data_type = DataType.FP16 if precision == "fp16" else DataType.FP32
    sizes = zip(names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name], data_type=data_type)
        for name, rows, dim in sizes
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def _batch_size(tables: Tables) -> float:
    """Samples of the batch in which the lookups were counted."""
    used = tables.pooling_factor > 0
    return float((tables.lookups[used] / tables.pooling_factor[used]).median()) if bool(used.any()) else 1.0
