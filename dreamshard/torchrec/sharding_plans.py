"""A placement as the `ShardingPlan` of `DistributedModelParallel`, with the shards that TorchRec's planner would make."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.sharding_plan import placement as device_of
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
)

from dreamshard.plan import Plan
from dreamshard.sharding import ON_EVERY_DEVICE, ON_ONE_HOST, ShardedPlacement, TableSharding, row_blocks
from dreamshard.tables import NUM_BINS, Tables, padded_dim
from dreamshard.torchrec.planned_tables import PlannedTable


def sharding_plan(
    plan: Plan,
    tables: Mapping[str, PlannedTable],
    *,
    device_type: str = "cuda",
    ranks_per_host: int | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
) -> ShardingPlan:
    """`plan` as TorchRec's own, however its tables are sharded.

    Args:
        plan: device `d` is rank `d`.
        tables: where the model has each of the plan's tables, by the plan's name.
        device_type: `cuda` or `cpu`.
        ranks_per_host: rank `r` uses GPU `r % ranks_per_host` of its host; the plan's devices per host if None.
        fields: further fields of TorchRec's `ParameterSharding`, by the plan's name of a table.

    Raises:
        ValueError: a table of the plan is not in `tables` or the other way round, or its columns or rows do not match.
    """
    names = list(plan.by_table())
    if unknown := sorted(set(names) ^ set(tables)):
        raise ValueError(
            f"the plan and the model differ in tables {unknown[:5]} ({len(unknown)} in all), so not every table would have "
            "a rank; use the plan that was made for this model"
        )
    ordered = [tables[name] for name in names]
    placement = plan.sharded_placement(_without_lookups(names, ordered))
    return placement_plan(
        placement,
        ordered,
        device_type=device_type,
        ranks_per_host=ranks_per_host,
        fields=[(fields or {}).get(name, {}) for name in names],
    )


def placement_plan(
    placement: ShardedPlacement,
    tables: Sequence[PlannedTable],
    *,
    device_type: str,
    ranks_per_host: int | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
) -> ShardingPlan:
    """`placement` as TorchRec's plan; `tables` and `fields` are in its order.

    The plan has a table's real columns where the placement has them rounded up to what fbgemm needs.

    Args:
        placement: device `d` is rank `d`.
        tables: where the model has each table.
        device_type: `cuda` or `cpu`.
        ranks_per_host: rank `r` uses GPU `r % ranks_per_host` of its host; the placement's devices per host if None.
        fields: further fields of `ParameterSharding` of each table; `cache_params` get the placement's load factor.

    Raises:
        ValueError: two tables of a module have the same name, or TorchRec cannot run a table sharded like this.
    """
    per_host = ranks_per_host or placement.devices_per_host
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for sharding, table, given in zip(placement.tables, tables, fields or [{}] * len(tables), strict=True):
        parameters = modules.setdefault(table.module_path, EmbeddingModuleShardingPlan())
        if table.name in parameters:
            raise ValueError(
                f"the model has two tables {table.name!r} in module {table.module_path!r}, so a plan could shard only one; "
                "rename one of them"
            )
        parameters[table.name] = _parameter(sharding, table, placement, device_type, per_host, given)
    return ShardingPlan(modules)


def _parameter(
    sharding: TableSharding,
    table: PlannedTable,
    placement: ShardedPlacement,
    device_type: str,
    per_host: int,
    fields: Mapping[str, Any],
) -> ParameterSharding:
    given = dict(fields)
    if sharding.sharding_type == "data_parallel":
        ranks = list(range(placement.num_devices))
        return ParameterSharding(sharding_type="data_parallel", compute_kernel="dense", ranks=ranks, **given)
    shards = [
        (rank, ShardMetadata([first, start], [last - first, end - start], device_of(device_type, rank, per_host)))
        for rank, (first, last), (start, end) in _shards(sharding, table, placement)
    ]
    if sharding.cached_share is not None:
        cache = given.get("cache_params") or CacheParams()
        given["cache_params"] = CacheParams(**{**vars(cache), "load_factor": sharding.cached_share})
    return ParameterSharding(
        sharding_type=sharding.sharding_type,
        compute_kernel="fused" if sharding.cached_share is None else "fused_uvm_caching",
        ranks=[rank for rank, _ in shards],
        sharding_spec=EnumerableShardingSpec([metadata for _, metadata in shards]),
        **given,
    )


def _shards(
    sharding: TableSharding, table: PlannedTable, placement: ShardedPlacement
) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Rank, rows and columns of each shard, in TorchRec's order; blocks may be empty."""
    columns = [(start, min(end, table.dim)) for start, end in sharding.columns]
    if table.is_sequence and len({end - start for start, end in columns}) > 1:
        raise ValueError(
            f"sequence table {table.path!r} is split into columns {columns}, but TorchRec exchanges the vectors of sequences "
            "in equally wide shards only; split it evenly, or allow other ways to shard it"
        )
    if sharding.sharding_type in ON_EVERY_DEVICE:
        firsts, count = [0], placement.num_devices
    elif sharding.sharding_type in ON_ONE_HOST:
        firsts, count = [host * placement.devices_per_host for host in sharding.where], placement.devices_per_host
    else:
        firsts, count = list(sharding.where), 1
    blocks = row_blocks(table.rows, count)
    return [
        (first + part, block, ends)
        for first, ends in zip(firsts, columns, strict=True)
        for part, block in enumerate(blocks)
    ]


def _without_lookups(names: Sequence[str], tables: Sequence[PlannedTable]) -> Tables:
    """The tables' sizes; nothing of their lookups."""
    none = torch.zeros(len(names), dtype=torch.int64)
    return Tables(
        tuple(names),
        rows=torch.tensor([table.rows for table in tables]),
        dim=torch.tensor([padded_dim(table.dim) for table in tables]),
        pooling_factor=torch.zeros(len(names)),
        bins=torch.zeros(len(names), NUM_BINS),
        lookups=none,
        unique_rows=none,
    )
