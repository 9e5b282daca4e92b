"""A placement as the `ShardingPlan` of `DistributedModelParallel`, with the shards of TorchRec's planner, and back."""

from collections import Counter
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

from dreamshard.files.foreign import InputError, brief, reading
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    Placement,
    ShardingType,
    TableSharding,
    row_blocks,
)
from dreamshard.plan import Plan, Shard, checked_shard
from dreamshard.tables import NUM_BINS, Tables, padded_dim
from dreamshard.torchrec.plan_file import PlanFile, parse_plan_file
from dreamshard.torchrec.planned_tables import PlannedTable
from dreamshard.torchrec.ways import CACHED

SAME_AS: Mapping[str, ShardingType] = {"table_column_wise": "column_wise"}  # which also keeps the columns on one host
DEFAULT_SHARE = 0.2
"""TorchRec's load factor of a cache where none is given."""


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
    placement = plan.placement(_without_lookups(names, ordered))
    return placement_plan(
        placement,
        ordered,
        device_type=device_type,
        ranks_per_host=ranks_per_host,
        fields=[(fields or {}).get(name, {}) for name in names],
    )


def placement_plan(
    placement: Placement,
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
    placement: Placement,
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
        compute_kernel="fused" if sharding.cached_share is None else CACHED,
        ranks=[rank for rank, _ in shards],
        sharding_spec=EnumerableShardingSpec([metadata for _, metadata in shards]),
        **given,
    )


def _shards(
    sharding: TableSharding, table: PlannedTable, placement: Placement
) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Rank, rows and columns of each shard, in TorchRec's order; blocks may be empty."""
    columns = [(start, min(end, table.dim)) for start, end in sharding.ranges(table.dim)]
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


def current_plan(
    source: ShardingPlan | str | bytes,
    tables: Tables | Sequence[PlannedTable] | None = None,
    *,
    num_devices: int | None = None,
    devices_per_host: int | None = None,
    name: str = "the plan",
) -> Plan:
    """TorchRec's plan as a `Plan`: rank `r` is device `r`.

    A table is called as in TorchRec, with its module path in front where two modules have tables of that name.

    Args:
        source: TorchRec's own object, or JSON that `dreamshard place --format torchrec` or `ShardingPlan._serialize` gave.
        tables: of the model; gives the columns of data-parallel tables where the file does not.
        num_devices: ranks; by default as the file says, else one more than the highest rank of the plan.
        devices_per_host: ranks of a host; by default as the file says.
        name: of the plan in errors.

    Raises:
        ValueError: the text is no plan of TorchRec, or a table is sharded in a way or kept in storage that a `Plan` does
            not know.
    """
    file = PlanFile(plan=source) if isinstance(source, ShardingPlan) else parse_plan_file(source, name)
    entries = [
        (path, table, parameter)
        for path, parameters in file.plan.plan.items()
        for table, parameter in parameters.items()
    ]
    counts = Counter(table for _, table, _ in entries)
    dims = _dims(file, tables)
    shards: list[Shard] = []
    with reading(name, "is not a TorchRec sharding plan", "so nothing can be compared with it; give the plan in use"):
        for path, table, parameter in entries:
            full = f"{path}.{table}" if path else table
            called = full if counts[table] > 1 else table
            shards += _plan_shards(called, parameter, dims.get(full, dims.get(table)), name)
    highest = max((shard.device for shard in shards), default=0)
    otherwise = any(shard.sharding_type or shard.cached_share for shard in shards)
    per_host = devices_per_host or file.ranks_per_host
    return Plan(
        num_devices=num_devices or file.world_size or highest + 1,
        placer="torchrec",
        shards=tuple(shards),
        devices_per_host=per_host if otherwise else None,
    )


def _dims(file: PlanFile, tables: Tables | Sequence[PlannedTable] | None) -> dict[str, int]:
    """Columns of each table, by its name and by its path."""
    if isinstance(tables, Tables):
        return dict(zip(tables.names, tables.dim.tolist(), strict=True))
    listed = [*(file.tables or ()), *(tables or ())]
    return {key: table.dim for table in listed for key in (table.name, table.path)}


def _plan_shards(table: str, parameter: ParameterSharding, dim: int | None, name: str) -> list[Shard]:
    sharding_type = SAME_AS.get(parameter.sharding_type, parameter.sharding_type)
    if sharding_type not in SHARDING_TYPES or parameter.compute_kernel not in ("fused", "dense", CACHED):
        way, kernel = (str(each) for each in (parameter.sharding_type, parameter.compute_kernel))
        raise InputError(
            f"{name} shards table {table!r} by {way} with kernel {kernel}, "
            f"whose cost is unknown here; known are {', '.join(SHARDING_TYPES)} with kernels fused, dense and {CACHED}"
        )
    cached = None
    if parameter.compute_kernel == CACHED:
        given = parameter.cache_params.load_factor if parameter.cache_params else None
        cached = DEFAULT_SHARE if given is None else given
    spec = parameter.sharding_spec
    if sharding_type == "data_parallel":
        if dim is None:
            raise InputError(
                f"{name} does not say how many columns the data-parallel table {brief(table)} has: it cannot be compared; "
                "give the model's tables beside it"
            )
        columns = padded_dim(dim)
        return [
            checked_shard(_shard_fields(table, rank, 0, columns) | {"sharding_type": "data_parallel"})
            for rank in parameter.ranks or ()
        ]
    if not isinstance(spec, EnumerableShardingSpec):
        raise InputError(
            f"{name} does not list the shards of table {table!r}, so it cannot be compared; give its full plan"
        )
    rows = max(shard.shard_offsets[0] + shard.shard_sizes[0] for shard in spec.shards)
    last = max(shard.shard_offsets[1] + shard.shard_sizes[1] for shard in spec.shards)
    shards = []
    for rank, shard in zip(parameter.ranks or (), spec.shards, strict=True):
        (row, column), (num_rows, num_columns) = shard.shard_offsets, shard.shard_sizes
        if not num_rows:
            continue
        end = column + num_columns
        last_column = padded_dim(end) if end == last else end
        placed = _shard_fields(table, rank, column, last_column) | {
            "row_start": row,
            "row_end": None if num_rows == rows else row + num_rows,
            "sharding_type": None if sharding_type in ON_ONE_DEVICE else sharding_type,
            "cached_share": cached,
        }
        shards.append(checked_shard(placed))
    return shards


def _shard_fields(table: str, rank: int, column_start: int, column_end: int) -> dict[str, Any]:
    return {"table": table, "device": rank, "column_start": column_start, "column_end": column_end}
