"""What TorchRec's planner is given of a task: topology, constraints, and a module that takes no memory."""

from dataclasses import dataclass

import torch
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, Topology, TopologyFactory, TrainerConfig
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dreamshard.tables import Precision, Tables, parent_name
from dreamshard.tasks import PlacementTask

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


def topology(num_devices: int, devices_per_host: int, memory_bytes: int, bandwidths: Bandwidths) -> Topology:
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


def planner_constraints(
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


def planner_module(task: PlacementTask, names: list[str]) -> EmbeddingBagCollection:
    """A TorchRec module of the task's tables."""
    return module_of(
        task.tables, [task.precision_of.get(parent_name(n), task.precision) for n in task.tables.names], names
    )


def module_of(tables: Tables, precisions: list[Precision], names: list[str]) -> EmbeddingBagCollection:
    """A TorchRec module of tables of these precisions that takes no memory."""
    sizes = zip(names, tables.rows.tolist(), tables.dim.tolist(), precisions, strict=True)
    configs = [
        EmbeddingBagConfig(
            name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name], data_type=_DATA_TYPES[precision]
        )
        for name, rows, dim, precision in sizes
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def local_batch_size(task: PlacementTask) -> int:
    """Samples of each device: of the task's batch, else of that in which the tables' lookups were counted."""
    return max(1, round((task.batch_size or counted_batch_size(task.tables)) / task.num_devices))


def counted_batch_size(tables: Tables) -> float:
    """Samples of the batch in which the lookups were counted."""
    used = tables.pooling_factor > 0
    return float((tables.lookups[used] / tables.pooling_factor[used]).median()) if bool(used.any()) else 1.0
