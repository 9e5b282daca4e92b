"""The bridge to TorchRec: its embedding modules as `Tables`, a plan as its `ShardingPlan`, its planner as a rival.

The only module that imports torchrec; it is imported where it is called for, so the rest works without torchrec.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
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
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dreamshard.formatting import gib
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.plan import Plan, Shard
from dreamshard.tables import NUM_BINS, Precision, Tables
from dreamshard.tasks import PlacementTask


def tables_of(module: EmbeddingBagCollection, pooling_factors: Mapping[str, float] | None = None) -> Tables:
    """The tables of a TorchRec module.

    Args:
        module: as the model is built with; on the `meta` device it takes no memory.
        pooling_factors: mean lookups per sample by table name; a table it lacks counts 1 per feature that looks it up.

    Returns:
        Tables without measured lookups: every distinct row counts once in `bins`, and `lookups` describe one sample.
    """
    configs = module.embedding_bag_configs()
    known = pooling_factors or {}
    pooling = [float(known.get(config.name, max(1, len(config.feature_names)))) for config in configs]
    bins = torch.zeros(len(configs), NUM_BINS)
    bins[:, 0] = 1.0
    lookups = torch.tensor([max(1, round(factor)) for factor in pooling])
    rows = torch.tensor([config.num_embeddings for config in configs])
    return Tables(
        tuple(config.name for config in configs),
        rows,
        torch.tensor([config.embedding_dim for config in configs]),
        torch.tensor(pooling),
        bins,
        lookups,
        torch.minimum(lookups, rows),
    )


def sharding_plan(
    plan: Plan, rows: Mapping[str, int], *, module_path: str = "", device_type: str = "cuda", ranks_per_host: int = 8
) -> ShardingPlan:
    """`plan` as TorchRec's own sharding plan: table-wise, or column-wise where a table is split.

    Args:
        plan: which device holds which table; device `d` is rank `d`.
        rows: hash size by table name.
        module_path: of the `EmbeddingBagCollection` within the model, e.g. `model.sparse_arch.ebc`.
        device_type: `cuda` or `cpu`.
        ranks_per_host: ranks that share a host; rank `r` uses its device `r % ranks_per_host`.
    """
    by_table: dict[str, list[Shard]] = {}
    for shard in plan.shards:
        by_table.setdefault(shard.table, []).append(shard)
    parameters = EmbeddingModuleShardingPlan()
    for table, shards in by_table.items():
        parameters[table] = _parameter(
            sorted(shards, key=lambda shard: shard.column_start), rows[table], device_type, ranks_per_host
        )
    return ShardingPlan({module_path: parameters})


def planned(
    task: PlacementTask, *, memory_bytes_per_s: float | None = None, link_bytes_per_s: float | None = None
) -> Placement:
    """Where TorchRec's `EmbeddingShardingPlanner` puts the tables, each whole and in device memory (fused kernel).

    The batch is the one that the tables' lookups were counted in, shared evenly by the devices.

    Args:
        memory_bytes_per_s: bandwidth of the devices' memory; None for TorchRec's default of 897 GiB/s.
        link_bytes_per_s: between the devices of one host, which all are; None for TorchRec's default of 600 GiB/s.

    Raises:
        NoPlacementError: the planner finds no plan.
    """
    topology = _topology(task.num_devices, task.memory_bytes, memory_bytes_per_s, link_bytes_per_s)
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
            f"{task.num_devices} devices of {gib(task.memory_bytes)}; give the devices more memory, add "
            "one, or choose another placer"
        ) from error
    parameters = plan.plan[""]
    return Placement(torch.tensor([parameters[name].ranks[0] for name in names]), task.num_devices)


def estimated_compute_ms(
    tables: Tables, batch_size: int, precision: Precision, memory_bytes_per_s: float
) -> Float[Tensor, " T"]:
    """Milliseconds of forward and backward that TorchRec's `EmbeddingPerfEstimator` gives each table, on one device.

    A shard's estimate is the sum over its tables: TorchRec knows no effect of fusing them. A table takes, in bytes over
    the bandwidth of device memory,

        (8 x lookups + weight_bytes x (lookups x max(dim, 32) + min(lookups, batch) x dim)) x penalty x (1 + 2)

    with a penalty of 1.75 below dim 64 and 1.15 below 128, and backward twice as dear as forward. It takes indices for
    int64 and pooled vectors for as wide as weights, and knows neither reuse of rows nor the optimizer. Its bandwidths are
    bytes per millisecond, so its times are milliseconds, although its docstrings call them seconds.

    Args:
        tables: each whole, table-wise, in device memory (fused kernel).
        batch_size: samples that the device looks up in a pass.
        precision: of the weights.
        memory_bytes_per_s: bandwidth of the device's memory.
    """
    names, constraints = _constraints(tables)
    topology = _topology(1, 2**62, memory_bytes_per_s, None)
    speed = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=topology, constraints=constraints)
    options = EmbeddingEnumerator(topology, batch_size, constraints, [speed]).enumerate(
        _module(tables, precision, names), [EmbeddingBagCollectionSharder()]
    )
    perfs = {option.name: option.shards[0].perf for option in options}
    return torch.tensor([perfs[name].fwd_compute + perfs[name].bwd_compute for name in names], dtype=torch.float64)


def to_json(plan: ShardingPlan) -> str:
    """The fields of each `ParameterSharding`, by module path and table name; `from_json` reads it back."""
    modules: dict[str, dict[str, Any]] = {}
    for path, parameters in plan.plan.items():
        modules[path] = {name: _fields(parameter) for name, parameter in parameters.items()}
    return json.dumps(modules, indent=2)


def from_json(text: str) -> ShardingPlan:
    """The real `ShardingPlan` that `to_json`, or `dreamshard place --format torchrec`, wrote.

    Hand it to `DistributedModelParallel(model, plan=...)`.

    Raises:
        ValueError: the text is not of that form.
    """
    try:
        modules: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
        return ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: _from_fields(entry) for name, entry in parameters.items()})
                for path, parameters in modules.items()
            }
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"this is not a TorchRec sharding plan ({type(error).__name__}: {error}), so no model can use it; "
            "give what `dreamshard place --format torchrec` wrote"
        ) from error


class _TableBytes(ShardEstimator):  # type: ignore[misc]  # torchrec is untyped here
    """The bytes that the task counts, instead of TorchRec's estimate of everything a device holds."""

    def __init__(
        self,
        by_name: Mapping[str, int],
        topology: Topology | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
    ) -> None:
        del topology, constraints
        self.by_name = by_name

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Sets the storage of each option, which is one whole table."""
        del sharder_data_map
        for option in sharding_options:
            option.shards[0].storage = Storage(hbm=self.by_name[option.name], ddr=0)


def _topology(
    num_devices: int, memory_bytes: int, memory_bytes_per_s: float | None, link_bytes_per_s: float | None
) -> Topology:
    """Devices of one host; None is TorchRec's default."""
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=num_devices, local_world_size=num_devices, hbm_cap_bytes=memory_bytes),
        HardwareConfig(  # in bytes/ms
            hbm_mem_bw=memory_bytes_per_s and memory_bytes_per_s / 1000,
            intra_host_bw=link_bytes_per_s and link_bytes_per_s / 1000,
        ),
        KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True),
    )


def _constraints(tables: Tables) -> tuple[list[str], dict[str, ParameterConstraints]]:
    """A name for each table, and that it stays whole, in device memory, with its pooling factor."""
    names = [f"t{t}" for t in range(len(tables))]
    return names, {
        name: ParameterConstraints(
            sharding_types=["table_wise"], compute_kernels=["fused"], pooling_factors=[max(pooling, 1e-6)]
        )
        for name, pooling in zip(names, tables.pooling_factor.tolist(), strict=True)
    }


def _module(tables: Tables, precision: Precision, names: list[str]) -> EmbeddingBagCollection:
    """The tables as a TorchRec module that takes no memory."""
    data_type = DataType.FP16 if precision == "fp16" else DataType.FP32
    sizes = zip(names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name], data_type=data_type)
        for name, rows, dim in sizes
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def _batch_size(tables: Tables) -> float:
    """Samples of the batch that the lookups were counted in."""
    used = tables.pooling_factor > 0
    return float((tables.lookups[used] / tables.pooling_factor[used]).median()) if bool(used.any()) else 1.0


def _parameter(shards: list[Shard], rows: int, device_type: str, ranks_per_host: int) -> ParameterSharding:
    metadata = [
        ShardMetadata(
            shard_offsets=[0, shard.column_start],
            shard_sizes=[rows, shard.column_end - shard.column_start],
            placement=f"rank:{shard.device}/{device_type}"
            + (f":{shard.device % ranks_per_host}" if device_type == "cuda" else ""),
        )
        for shard in shards
    ]
    return ParameterSharding(
        sharding_type="table_wise" if len(shards) == 1 else "column_wise",
        compute_kernel="fused",
        ranks=[shard.device for shard in shards],
        sharding_spec=EnumerableShardingSpec(metadata),
    )


def _fields(parameter: ParameterSharding) -> dict[str, Any]:
    spec = parameter.sharding_spec
    shards = spec.shards if isinstance(spec, EnumerableShardingSpec) else []
    return {
        "sharding_type": parameter.sharding_type,
        "compute_kernel": parameter.compute_kernel,
        "ranks": parameter.ranks,
        "sharding_spec": [
            {
                "shard_offsets": list(shard.shard_offsets),
                "shard_sizes": list(shard.shard_sizes),
                "placement": str(shard.placement),
            }
            for shard in shards
        ],
    }


def _from_fields(entry: dict[str, Any]) -> ParameterSharding:
    return ParameterSharding(
        sharding_type=entry["sharding_type"],
        compute_kernel=entry["compute_kernel"],
        ranks=entry["ranks"],
        sharding_spec=EnumerableShardingSpec(
            [
                ShardMetadata(
                    shard_offsets=shard["shard_offsets"],
                    shard_sizes=shard["shard_sizes"],
                    placement=shard["placement"],
                )
                for shard in entry["sharding_spec"]
            ]
        ),
    )
