"""TorchRec's planner (torchrec 1.8.0, `EmbeddingShardingPlanner`) as a placer.

It rates a table by its lookups, row bytes and the bandwidths of its `Topology`, and partitions greedily. It measures
nothing and is not trained. Each device offers exactly the task's memory; nothing is reserved for the planner's own
estimates of dense parameters and inputs.

TorchRec splits no table into columns narrower than its `min_partition`, 128 by default, which leaves most tables whole, and
it considers one width per table. `torchrec_planner_columns` therefore lets it plan three times, with halves, quarters and
eighths of each table allowed besides the whole one, and takes the plan that TorchRec rates best.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
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
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.types import DataType

from dreamshard.files import gib
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.tables import ON_ONE_DEVICE, Placement, padded_dim
from dreamshard.tasks import NoPlacementError, PlacementTask
from dreamshard.torchrec.plans import CACHED, current_plan, shards_of


@dataclass(frozen=True)
class TorchRecPlanner:
    """TorchRec's planner as a placer.

    Attributes:
        spec: whose bandwidths and hosts it assumes; None for TorchRec's default bandwidths and all devices on one host.
        timeout_s: after which it returns its best plan so far; None for no limit.
        name: in reports.
        columns: whether tables may be split by columns.
    """

    spec: AcceleratorSpec | None = None
    timeout_s: int | None = None
    name: str = "torchrec_planner"
    columns: bool = False

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Place the tables as TorchRec would; the task's constraints of single tables are not TorchRec's.

        If the task allows rows to be spread or copies, it considers its default sharding types, without grid sharding, and a
        cache if the task allows one. Otherwise tables are whole, or in halves, quarters or eighths with `columns`. The
        devices share the task's batch, or else the batch in which the tables' lookups were counted.

        Raises:
            NoPlacementError: the planner finds no plan.
        """
        kernels, wanted = ["fused"], [(["table_wise"], 0)]
        if set(task.constraints.usual_types) - set(ON_ONE_DEVICE):
            kernels, wanted = ["fused", "dense", *([CACHED] if task.constraints.caching else [])], [([], 0)]
        elif self.columns:
            wanted = [(["table_wise", "column_wise"], parts) for parts in (2, 4, 8)]
        plans = []
        for types, parts in wanted:
            with suppress(PlannerError):
                plans.append(self._planned(task, parameter_constraints(task, types, kernels, parts)))
        if not plans:
            raise NoPlacementError(
                f"TorchRec's planner found no plan for the {len(task.tables)} tables of {task.name} on {task.num_devices} "
                f"devices of {gib(task.memory_bytes)}; allow more memory, or choose another placer"
            )
        plan, _ = min(plans, key=lambda planned: planned[1])
        tables = replace(task.tables, names=_names(task))
        planned = current_plan(plan, tables, num_devices=task.num_devices, devices_per_host=self._per_host(task))
        return planned.placement(tables)

    def _planned(self, task: PlacementTask, constraints: dict[str, ParameterConstraints]) -> tuple[ShardingPlan, float]:
        """TorchRec's plan, and its estimate of the slowest device's milliseconds."""
        devices, batch_size = self.topology(task), local_batch_size(task)
        speed = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=devices, constraints=constraints)
        rating = _Rating(topology=devices)
        planner = EmbeddingShardingPlanner(
            topology=devices,
            batch_size=batch_size,
            enumerator=EmbeddingEnumerator(devices, batch_size, constraints, [speed, _ShardBytes(task)]),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            performance_model=rating,
            stats=[],
            constraints=constraints,
            debug=False,
            timeout_seconds=self.timeout_s,
        )
        return planner.plan(module_of(task), [EmbeddingBagCollectionSharder()]), rating.best

    def topology(self, task: PlacementTask) -> Topology:
        """Devices on hosts; TorchRec counts bandwidths in bytes per millisecond."""
        spec, hardware = self.spec, HardwareConfig()
        if spec is not None:
            hardware = HardwareConfig(
                hbm_mem_bw=spec.memory_bytes_per_s / 1000,
                intra_host_bw=spec.link_bytes_per_s / 1000,
                inter_host_bw=spec.network_bytes_per_s / 1000,
                hbm_to_ddr_mem_bw=spec.host_bytes_per_s and spec.host_bytes_per_s / 1000,
            )
        hosts = TrainerConfig(
            world_size=task.num_devices, local_world_size=self._per_host(task), hbm_cap_bytes=task.memory_bytes
        )
        kernels = KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True)
        return TopologyFactory.create_topology(hosts, hardware, kernels)

    def _per_host(self, task: PlacementTask) -> int:
        of_spec = self.spec.devices_per_host if self.spec else task.num_devices
        return min(task.num_devices, task.devices_per_host or of_spec)


def parameter_constraints(
    task: PlacementTask, sharding_types: list[str], kernels: list[str], column_parts: int
) -> dict[str, ParameterConstraints]:
    """TorchRec's constraints of each table, with the lookups and the vectors that a sample has of it.

    Args:
        sharding_types: empty for the types that TorchRec considers by default.
        column_parts: of how many parts the columns of a table may be; 0 for at least 128 columns, as by default.
    """
    tables = task.tables
    return {
        name: ParameterConstraints(
            sharding_types=sharding_types or None,
            compute_kernels=kernels,
            pooling_factors=[max(pooling / max(vectors, 1e-6), 1e-6)],
            num_poolings=[vectors],
            min_partition=padded_dim(-(-dim // column_parts)) if column_parts else None,
        )
        for name, pooling, vectors, dim in zip(
            _names(task), tables.pooling_factor.tolist(), tables.vectors.tolist(), tables.dim.tolist(), strict=True
        )
    }


def _names(task: PlacementTask) -> tuple[str, ...]:
    """Names of the tables that PyTorch accepts for parameters."""
    return tuple(f"t{t}" for t in range(len(task.tables)))


def module_of(task: PlacementTask) -> EmbeddingBagCollection:
    """A TorchRec module of the task's tables, which takes no memory."""
    tables = task.tables
    sizes = zip(_names(task), task.precisions, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=rows,
            embedding_dim=dim,
            feature_names=[name],
            data_type=DataType(precision.upper()),
        )
        for name, precision, rows, dim in sizes
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def local_batch_size(task: PlacementTask) -> int:
    """Samples of each device: of the task's batch, or of the batch in which the tables' lookups were counted."""
    return max(1, round((task.batch_size or task.tables.batch_size) / task.num_devices))


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

    def __init__(self, task: PlacementTask) -> None:
        self.task = task

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Set the storage of each shard."""
        options = ((option, int(option.name.removeprefix("t"))) for option in sharding_options)
        shards_of(self.task, options, self.task.num_devices)
