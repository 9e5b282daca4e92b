"""A placement as the `ShardingPlan` of `DistributedModelParallel`, with the shards of TorchRec's planner, and back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchrec.distributed.sharding_plan import placement as device_of
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from dreamshard.files.foreign import InputError, reading
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Placement,
    ShardingType,
    TableSharding,
    row_blocks,
)
from dreamshard.plan import Plan, checked_shard
from dreamshard.tables import Tables, padded_dim
from dreamshard.torchrec.plan_file import PlanFile, parse_plan_file
from dreamshard.workloads.model_tables import ModelTable

SAME_AS: Mapping[str, ShardingType] = {"table_column_wise": "column_wise"}  # which also keeps the columns on one host
CACHED = "fused_uvm_caching"
DEFAULT_SHARE = 0.2
"""TorchRec's load factor of a cache if none is given."""

Block = tuple[int, tuple[int, int], tuple[int, int]]
"""Rank, first and last (exclusive) row, first and last column."""


def sharding_plan(
    placement: Placement,
    tables: Sequence[ModelTable],
    *,
    device_type: str,
    ranks_per_host: int | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
) -> ShardingPlan:
    """`placement` as TorchRec's plan; `tables` and `fields` are in its order.

    The plan has a table's real columns if the placement has them rounded up to a multiple of 4.

    Args:
        placement: device `d` is rank `d`.
        tables: as the model has them.
        device_type: `cuda` or `cpu`.
        ranks_per_host: rank `r` uses GPU `r % ranks_per_host` of its host; the placement's devices per host if None.
        fields: further fields of `ParameterSharding` of each table; `cache_params` get the placement's load factor.

    Raises:
        ValueError: two tables of a module have the same name, or TorchRec cannot run a table sharded like this.
    """
    per_host = ranks_per_host or placement.devices_per_host
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for sharding, table, further in zip(placement.tables, tables, fields or [{}] * len(tables), strict=True):
        parameters = modules.setdefault(table.module_path, EmbeddingModuleShardingPlan())
        if table.name in parameters:
            raise ValueError(f"module {table.module_path!r} has two tables {table.name!r}; rename one of them")
        given = {name: value for name, value in further.items() if name != "cache_params"}
        ranges = [(start, min(end, table.dim)) for start, end in sharding.ranges(table.dim)]
        if table.pooling == "none" and len({end - start for start, end in ranges}) > 1:
            raise ValueError(
                f"sequence table {table.path!r} is split into columns {ranges}, but TorchRec runs sequences in equally wide "
                "shards only; split it evenly"
            )
        if sharding.sharding_type == "data_parallel":
            ranks = list(range(placement.num_devices))
            parameters[table.name] = ParameterSharding("data_parallel", "dense", ranks, **given)
            continue
        if sharding.cached_share is not None:
            cache = vars(further.get("cache_params") or CacheParams())
            given["cache_params"] = CacheParams(**{**cache, "load_factor": sharding.cached_share})
        blocks = _blocks(sharding, table.rows, ranges, placement.num_devices, placement.devices_per_host)
        parameters[table.name] = ParameterSharding(
            sharding_type=sharding.sharding_type,
            compute_kernel="fused" if sharding.cached_share is None else CACHED,
            ranks=[rank for rank, _, _ in blocks],
            sharding_spec=EnumerableShardingSpec(
                [
                    ShardMetadata([first, start], [last - first, end - start], device_of(device_type, rank, per_host))
                    for rank, (first, last), (start, end) in blocks
                ]
            ),
            **given,
        )
    return ShardingPlan(modules)


def table_sharding(parameter: ParameterSharding, dim: int | None, devices_per_host: int, name: str) -> TableSharding:
    """How TorchRec shards a table; the last range of columns ends at the next multiple of 4.

    Args:
        dim: columns of the table; None if only the plan says.
        devices_per_host: ranks of a host.
        name: of the plan and its table in errors.

    Raises:
        InputError: in a way or with a kernel that is not planned, or the plan does not say which columns are where.
    """
    way = SAME_AS.get(parameter.sharding_type, parameter.sharding_type)
    if way not in SHARDING_TYPES or parameter.compute_kernel not in ("fused", "dense", CACHED):
        raise InputError(
            f"{name} is sharded by {way} with kernel {parameter.compute_kernel}, whose cost is unknown; known are "
            f"{', '.join(SHARDING_TYPES)} with kernels fused, dense and {CACHED}"
        )
    share = None
    if parameter.compute_kernel == CACHED:
        load_factor = parameter.cache_params.load_factor if parameter.cache_params else None
        share = DEFAULT_SHARE if load_factor is None else float(load_factor)
    size = devices_per_host if way in ON_ONE_HOST else 1
    first: dict[tuple[int, int], int] = {}
    if isinstance(parameter.sharding_spec, EnumerableShardingSpec):
        shards: list[Any] = parameter.sharding_spec.shards
        for shard in shards:
            start, width = int(shard.shard_offsets[1]), int(shard.shard_sizes[1])
            rank = int(shard.placement.rank())
            first[start, start + width] = min(first.get((start, start + width), rank), rank)
    elif way not in ON_EVERY_DEVICE:  # types, kernels and ranks only: shards of equal width, as TorchRec cuts them
        starts = (parameter.ranks or [])[::size]
        if not starts or (dim is None and way in SPLIT_BY_COLUMNS):
            raise InputError(
                f"{name} lists no shards, so its columns are unknown; give the model's tables, or the full plan"
            )
        ends = [(dim or 0) * part // len(starts) for part in range(len(starts) + 1)]
        first = dict(zip(pairwise(ends), starts, strict=True))
    ranges = sorted(first)
    where = () if way in ON_EVERY_DEVICE else tuple(first[each] // size for each in ranges)
    if way == "column_wise" and len(ranges) == 1:
        way = "table_wise"
    if way not in SPLIT_BY_COLUMNS:
        return TableSharding(way, where=where, cached_share=share)
    columns = (*ranges[:-1], (ranges[-1][0], padded_dim(ranges[-1][1])))
    return TableSharding(way, columns, where, share)


def current_plan(
    source: ShardingPlan | str | bytes,
    tables: Tables | Sequence[ModelTable] | None = None,
    *,
    num_devices: int | None = None,
    devices_per_host: int | None = None,
    name: str = "the plan",
) -> Plan:
    """TorchRec's plan as a `Plan`: rank `r` is device `r`.

    A table is called as in TorchRec, with its module path in front if two modules have tables of that name.

    Args:
        source: TorchRec's own object, or JSON that `dreamshard place --format torchrec` or `ShardingPlan._serialize` gave.
        tables: of the model; give rows and columns if the plan lists no shards, as of data-parallel tables.
        num_devices: ranks; by default as the file says, else one more than the highest rank of the plan.
        devices_per_host: ranks of a host; by default as the file says, else as GPUs are numbered.
        name: of the plan in errors.

    Raises:
        ValueError: the text is no plan of TorchRec, or a table is sharded in a way or kept in storage that is not planned.
    """
    file = PlanFile.of(source) if isinstance(source, ShardingPlan) else parse_plan_file(source, name)
    entries = [
        (path, each, own) for path, own_plan in file.sharding_plan().plan.items() for each, own in own_plan.items()
    ]
    counts = Counter(table for _, table, _ in entries)
    ranks = [rank for _, _, parameter in entries for rank in parameter.ranks or ()]
    world_size = num_devices or file.world_size or max(ranks, default=0) + 1
    per_host = devices_per_host or file.ranks_per_host or _ranks_per_host([own for _, _, own in entries])
    sizes = _sizes(file, tables)
    shards, is_plain = [], True
    with reading(name, "is not a TorchRec sharding plan", "so nothing can be compared with it; give the plan in use"):
        for path, table, parameter in entries:
            full = f"{path}.{table}" if path else table
            called = full if counts[table] > 1 else table
            rows, dim = sizes.get(full, sizes.get(table, (None, None)))
            spec = parameter.sharding_spec
            if isinstance(spec, EnumerableShardingSpec):
                rows, dim = (max(s.shard_offsets[i] + s.shard_sizes[i] for s in spec.shards) for i in (0, 1))
            sharding = table_sharding(parameter, dim, per_host or world_size, f"table {called!r} of {name}")
            if rows is None or dim is None:
                raise InputError(
                    f"{name} does not say how many rows and columns table {called!r} has; give the model's tables beside it"
                )
            own = len(parameter.ranks or ()) if sharding.sharding_type in ON_EVERY_DEVICE else world_size
            blocks = _blocks(sharding, rows, sharding.ranges(padded_dim(dim)), own, per_host or world_size)
            if isinstance(spec, EnumerableShardingSpec) and _cut(blocks, dim) != _listed(parameter):
                raise InputError(f"{name} cuts table {called!r} into other shards than {sharding.sharding_type} ones")
            is_plain &= sharding.sharding_type in ON_ONE_DEVICE and sharding.cached_share is None
            shards += [
                checked_shard(
                    {
                        "table": called,
                        "device": rank,
                        "column_start": start,
                        "column_end": end,
                        "row_start": first,
                        "row_end": None if last - first == rows else last,
                        "sharding_type": None if sharding.sharding_type in ON_ONE_DEVICE else sharding.sharding_type,
                        "cached_share": sharding.cached_share,
                    }
                )
                for rank, (first, last), (start, end) in blocks
                if first < last
            ]
    return Plan(
        num_devices=world_size,
        placer="torchrec",
        shards=tuple(shards),
        devices_per_host=None if is_plain else per_host,
    )


def _blocks(
    sharding: TableSharding, rows: int, ranges: Sequence[tuple[int, int]], num_devices: int, devices_per_host: int
) -> list[Block]:
    """The shards of a table in TorchRec's order; blocks of rows may be empty."""
    firsts, count = list(sharding.where), 1
    if sharding.sharding_type in ON_EVERY_DEVICE:
        firsts, count = [0], num_devices
    elif sharding.sharding_type in ON_ONE_HOST:
        firsts, count = [host * devices_per_host for host in sharding.where], devices_per_host
    blocks = [(0, rows)] * count if sharding.sharding_type == "data_parallel" else row_blocks(rows, count)
    return [
        (first + part, block, columns)
        for first, columns in zip(firsts, ranges, strict=True)
        for part, block in enumerate(blocks)
    ]


def _cut(blocks: Sequence[Block], dim: int) -> set[Block]:
    """The blocks that hold rows, with the table's real columns."""
    return {(rank, rows, (start, min(end, dim))) for rank, rows, (start, end) in blocks if rows[0] < rows[1]}


def _listed(parameter: ParameterSharding) -> set[Block]:
    """The blocks of TorchRec's plan that hold rows."""
    found = set()
    for rank, shard in zip(parameter.ranks or (), parameter.sharding_spec.shards, strict=True):
        (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
        found |= {(rank, (row, row + rows), (column, column + columns))} if rows else set()
    return found


def _ranks_per_host(parameters: Sequence[ParameterSharding]) -> int | None:
    """Ranks of a host as table-row-wise tables and the numbers of GPUs say; None if they do not say."""
    for each in parameters:
        if each.sharding_type == "table_row_wise" and each.ranks:
            return len(each.ranks)
    specs = [each.sharding_spec for each in parameters if isinstance(each.sharding_spec, EnumerableShardingSpec)]
    places: list[Any] = [shard.placement for spec in specs for shard in spec.shards]
    gpus = [(place.rank(), place.device().index) for place in places if place.device().index is not None]
    return 1 + max(gpu for _, gpu in gpus) if any(rank != gpu for rank, gpu in gpus) else None


def _sizes(file: PlanFile, tables: Tables | Sequence[ModelTable] | None) -> dict[str, tuple[int, int]]:
    """Rows and columns of each table, by its name and by its path."""
    if isinstance(tables, Tables):
        sizes = zip(tables.rows.tolist(), tables.dim.tolist(), strict=True)
        return dict(zip(tables.names, sizes, strict=True))
    listed = [*(file.tables or ()), *(tables or ())]
    return {key: (table.rows, table.dim) for table in listed for key in (table.name, table.path)}
