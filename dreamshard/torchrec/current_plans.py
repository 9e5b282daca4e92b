"""A sharding plan of TorchRec as a `Plan`, for example the one in use."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from dreamshard.files.foreign import InputError, brief, reading
from dreamshard.plan import Plan, Shard, checked_shard
from dreamshard.sharding import ON_ONE_DEVICE, SHARDING_TYPES
from dreamshard.tables import Tables, padded_dim
from dreamshard.torchrec.plan_file import PlanFile, parse_plan_file
from dreamshard.torchrec.planned_tables import PlannedTable

_SAME_AS = {"table_column_wise": "column_wise"}  # which also keeps the columns on one host
_CACHED = "fused_uvm_caching"
_DEFAULT_SHARE = 0.2  # TorchRec's load factor where a plan gives none


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
            shards += _shards(called, parameter, dims.get(full, dims.get(table)), name)
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


def _shards(table: str, parameter: ParameterSharding, dim: int | None, name: str) -> list[Shard]:
    sharding_type = _SAME_AS.get(parameter.sharding_type, parameter.sharding_type)
    if sharding_type not in SHARDING_TYPES or parameter.compute_kernel not in ("fused", "dense", _CACHED):
        way, kernel = (str(each) for each in (parameter.sharding_type, parameter.compute_kernel))
        raise InputError(
            f"{name} shards table {table!r} by {way} with kernel {kernel}, "
            f"whose cost is unknown here; known are {', '.join(SHARDING_TYPES)} with kernels fused, dense and {_CACHED}"
        )
    cached = None
    if parameter.compute_kernel == _CACHED:
        given = parameter.cache_params.load_factor if parameter.cache_params else None
        cached = _DEFAULT_SHARE if given is None else given
    spec = parameter.sharding_spec
    if sharding_type == "data_parallel":
        if dim is None:
            raise InputError(
                f"{name} does not say how many columns the data-parallel table {brief(table)} has: it cannot be compared; "
                "give the model's tables beside it"
            )
        columns = padded_dim(dim)
        return [
            checked_shard(_fields(table, rank, 0, columns) | {"sharding_type": "data_parallel"})
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
        placed = _fields(table, rank, column, last_column) | {
            "row_start": row,
            "row_end": None if num_rows == rows else row + num_rows,
            "sharding_type": None if sharding_type in ON_ONE_DEVICE else sharding_type,
            "cached_share": cached,
        }
        shards.append(checked_shard(placed))
    return shards


def _fields(table: str, rank: int, column_start: int, column_end: int) -> dict[str, Any]:
    return {"table": table, "device": rank, "column_start": column_start, "column_end": column_end}
