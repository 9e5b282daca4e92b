"""TorchRec's planner as a rival."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.perf_models import NoopPerfModel
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
from torchrec.distributed.types import ParameterSharding
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dreamshard.files.text import gib
from dreamshard.placement import ON_ONE_DEVICE, SHARDING_TYPES, Placement
from dreamshard.placer import NoPlacementError
from dreamshard.shards import Shards
from dreamshard.tables import Tables, parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.sharding_plans import CACHED, DEFAULT_SHARE, SAME_AS, table_sharding

_COLUMN_PARTS = (2, 4, 8)
_DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16, "int8": DataType.INT8}


@dataclass(frozen=True, kw_only=True)
class Bandwidths:
    """Bytes per second; None for TorchRec's defaults.

    Attributes:
        memory: of device memory; 897 GiB/s by default.
        link: between devices of a host; 600 GiB/s by default.
        network: of each device between hosts; 12.5 GiB/s by default.
        host_memory: between device memory and the host's; 32 GiB/s by default.
    """

    memory: float | None = None
    link: float | None = None
    network: float | None = None
    host_memory: float | None = None


def place(
    task: PlacementTask,
    bandwidths: Bandwidths,
    devices_per_host: int | None = None,
    timeout_s: int | None = None,
    *,
    columns: bool = False,
) -> Placement:
    """Place tables by TorchRec's `EmbeddingShardingPlanner`.

    If the task allows rows to be spread or copies, it considers its default ways to shard, without grid sharding, and a cache
    if the task allows one. Otherwise tables are whole, or with `columns` in halves, quarters or eighths: the planner
    considers one width per table, so it plans once for each, and the plan that it rates best is taken.

    The devices share the batch of the task, or else the batch in which the tables' lookups were counted.

    Args:
        task: to be placed.
        bandwidths: of the devices.
        devices_per_host: if the task does not say; None for all devices on one host.
        timeout_s: after which a plan of other than whole tables is the best so far; None for no limit.
        columns: whether tables may be split by columns.

    Raises:
        NoPlacementError: the planner finds no plan.
    """
    constraints = task.constraints
    if set(constraints.sharding_types) - set(ON_ONE_DEVICE):
        kernels = ["fused", "dense", *([CACHED] if constraints.caching else [])]
        parameters, _ = _planned(task, bandwidths, devices_per_host, None, kernels, timeout_s)
    elif not columns:
        parameters, _ = _planned(task, bandwidths, devices_per_host, ["table_wise"], ["fused"])
    else:
        plans: list[tuple[list[ParameterSharding], float]] = []
        for parts in _COLUMN_PARTS:
            with suppress(NoPlacementError):
                types = ["table_wise", "column_wise"]
                plans.append(_planned(task, bandwidths, devices_per_host, types, ["fused"], timeout_s, parts))
        if not plans:
            raise _no_plan(task, "of whole tables and columns ")
        parameters, _ = min(plans, key=lambda plan: plan[1])
    per_host = _per_host(task, devices_per_host)
    tables = (
        table_sharding(parameter, dim, per_host, name)
        for parameter, dim, name in zip(parameters, task.tables.dim.tolist(), task.tables.names, strict=True)
    )
    return Placement(tuple(tables), task.num_devices, per_host)


def _planned(
    task: PlacementTask,
    bandwidths: Bandwidths,
    devices_per_host: int | None,
    sharding_types: list[str] | None,
    kernels: list[str],
    timeout_s: int | None = None,
    column_parts: int | None = None,
) -> tuple[list[ParameterSharding], float]:
    """How TorchRec's planner shards each table, and its estimate of the slowest device's milliseconds."""
    per_host = _per_host(task, devices_per_host)
    devices = _topology(task.num_devices, per_host, task.memory_bytes, bandwidths)
    names, constraints = _constraints(task.tables, sharding_types, kernels, column_parts)
    batch_size = _local_batch_size(task)
    speed = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=devices, constraints=constraints)
    rating = _Rating(topology=devices)
    planner = EmbeddingShardingPlanner(
        topology=devices,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(devices, batch_size, constraints, [speed, _ShardBytes(task, names)]),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        performance_model=rating,
        stats=[],
        constraints=constraints,
        debug=False,
        timeout_seconds=timeout_s,
    )
    try:
        plan = planner.plan(_module(task, names), [EmbeddingBagCollectionSharder()])
    except PlannerError as error:
        raise _no_plan(task, "of whole tables " if sharding_types == ["table_wise"] else "") from error
    parameters = plan.plan[""]
    return [parameters[name] for name in names], rating.best


def _topology(num_devices: int, devices_per_host: int, memory_bytes: int, bandwidths: Bandwidths) -> Topology:
    """Devices on hosts; TorchRec counts bandwidths in bytes per millisecond."""

    def per_ms(bytes_per_s: float | None) -> float | None:
        return bytes_per_s and bytes_per_s / 1000

    return TopologyFactory.create_topology(
        TrainerConfig(world_size=num_devices, local_world_size=devices_per_host, hbm_cap_bytes=memory_bytes),
        HardwareConfig(
            hbm_mem_bw=per_ms(bandwidths.memory),
            intra_host_bw=per_ms(bandwidths.link),
            inter_host_bw=per_ms(bandwidths.network),
            hbm_to_ddr_mem_bw=per_ms(bandwidths.host_memory),
        ),
        KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True),
    )


def _constraints(
    tables: Tables, sharding_types: list[str] | None, kernels: list[str], column_parts: int | None = None
) -> tuple[list[str], dict[str, ParameterConstraints]]:
    """Names for the tables, and what each may be.

    Args:
        sharding_types: None for the ways to shard that TorchRec considers by default.
        column_parts: of how many parts the columns of a table may be; None for parts of at least 128 columns, as by default.
    """
    names = [f"t{t}" for t in range(len(tables))]
    return names, {
        name: ParameterConstraints(
            sharding_types=sharding_types,
            compute_kernels=kernels,
            pooling_factors=[max(pooling, 1e-6)],
            min_partition=None if column_parts is None else 4 * -(-dim // (4 * column_parts)),
        )
        for name, pooling, dim in zip(names, tables.pooling_factor.tolist(), tables.dim.tolist(), strict=True)
    }


def _module(task: PlacementTask, names: list[str]) -> EmbeddingBagCollection:
    """A TorchRec module of the task's tables, which takes no memory."""
    tables = task.tables
    sizes = zip(names, tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=rows,
            embedding_dim=dim,
            feature_names=[name],
            data_type=_DATA_TYPES[task.precision_of.get(parent_name(full_name), task.precision)],
        )
        for name, full_name, rows, dim in sizes
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def _local_batch_size(task: PlacementTask) -> int:
    """Samples of each device: of the task's batch, or of the batch in which the tables' lookups were counted."""
    tables, used = task.tables, task.tables.pooling_factor > 0
    counted = float((tables.lookups[used] / tables.pooling_factor[used]).median()) if bool(used.any()) else 1.0
    return max(1, round((task.batch_size or counted) / task.num_devices))


def _no_plan(task: PlacementTask, what: str) -> NoPlacementError:
    return NoPlacementError(
        f"TorchRec's planner found no plan {what}for the {len(task.tables)} tables of {task.name} on "
        f"{task.num_devices} devices of {gib(task.memory_bytes)}; give the devices more memory, add one, or choose "
        "another placer"
    )


def _per_host(task: PlacementTask, devices_per_host: int | None) -> int:
    return min(task.num_devices, task.devices_per_host or devices_per_host or task.num_devices)


class _Rating(NoopPerfModel):  # type: ignore[misc]  # torchrec is untyped here
    """TorchRec's rating of plans, the estimated time of the slowest device, which remembers the best one."""

    best = math.inf

    def rate(self, plan: list[ShardingOption]) -> float:
        """Rate a plan."""
        value = float(super().rate(plan))
        self.best = min(self.best, value)
        return value


class _ShardBytes(ShardEstimator):  # type: ignore[misc]  # torchrec is untyped here
    """The task's bytes per shard, instead of TorchRec's estimate of everything on a device."""

    def __init__(self, task: PlacementTask, names: list[str]) -> None:
        self.task, self.table = task, {name: t for t, name in enumerate(names)}

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Set the storage of each shard."""
        shards = []
        for option in sharding_options:
            for shard in option.shards:
                shard.storage = Storage(hbm=0, ddr=0)
                if min(shard.size) > 0:  # tables of fewer rows than devices leave some without
                    shards.append((option, shard))
        entries: list[tuple[float, ...]] = []
        for option, shard in shards:
            (first_row, first_column), (rows, columns) = shard.offset, shard.size
            kind = SAME_AS.get(option.sharding_type, option.sharding_type)
            share = math.nan
            if option.compute_kernel == CACHED:
                share = min(max(option.cache_load_factor or DEFAULT_SHARE, 1e-9), 1.0)
            t = self.table[option.name]
            entries.append((t, SHARDING_TYPES.index(kind), first_row, rows, first_column, columns, share))
        fields = torch.tensor(entries, dtype=torch.float64).reshape(-1, 7).T
        table, number, *ranges = fields[:6].long()
        placed = Shards.made(
            self.task,
            table=table,
            device=torch.zeros_like(table),
            sharding_type=number,
            rows=torch.stack([ranges[0], ranges[0] + ranges[1]], dim=1),
            columns=torch.stack([ranges[2], ranges[2] + ranges[3]], dim=1),
            cached_share=fields[6],
            devices_per_host=self.task.num_devices,
        )
        for (_, shard), device, host in zip(
            shards, placed.device_bytes.tolist(), placed.host_bytes.tolist(), strict=True
        ):
            shard.storage = Storage(hbm=device, ddr=host)
