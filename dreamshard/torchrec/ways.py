"""The ways to shard that TorchRec's sharders can run a table in, and room for tables that must be copied to every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.sharding_plan import get_module_to_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dreamshard.constraints import Constraints
from dreamshard.formatting import gib
from dreamshard.model_tables import ModelTable, ModelTables, shown
from dreamshard.placement import ON_ONE_DEVICE, SHARDING_TYPES, ShardingType
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW,
    BYTES_PER_ROW_STATE,
    BYTES_PER_WEIGHT,
    DIM_MULTIPLE,
    Optimizer,
    Precision,
    padded_dim,
)
from dreamshard.torchrec.planned_tables import PlannedTable

CACHED = "fused_uvm_caching"
_FUSED, _DENSE = "fused", "dense"
_GENERAL = (SHARDING_TYPES, ON_ONE_DEVICE)  # choices among which nobody named single ways
_ONLY_IF_NAMED_FOR_SEQUENCES = ("column_wise",)  # which TorchRec runs in equally wide shards only
_ONLY_IF_NAMED_FOR_FEATURE_PROCESSORS = ("row_wise", "table_row_wise", "grid_shard")

COPIED = (
    "it is copied to every rank, since fbgemm's fused operator refuses its {dim} columns; widen it to {wider} to have it "
    "sharded"
)
"""A note on a table whose columns are no multiple of 4."""


@dataclass(frozen=True)
class Ways:
    """How a table may be sharded.

    Attributes:
        sharding_types: at least one.
        may_cache: whether it may be in host memory with a cache on the device.
        must_cache: whether it may only be there.
        is_copied: whether it is data-parallel since fbgemm's fused operators refuse its columns.
    """

    sharding_types: tuple[ShardingType, ...]
    may_cache: bool
    must_cache: bool = False
    is_copied: bool = False


def ways(
    table: PlannedTable,
    sharder: ModuleSharder[nn.Module],
    compute_device: str,
    *,
    named: Sequence[str],
    kernels: Sequence[str] | None = None,
) -> Ways:
    """The ways to shard a table that its sharder offers, out of those that are named.

    Args:
        table: of the model.
        sharder: of its collection.
        compute_device: of the ranks: `cuda` or `cpu`.
        named: ways to choose from.
        kernels: TorchRec's compute kernels to choose from; None for all.

    Raises:
        ValueError: there is none.
    """
    offered = sharder.sharding_types(compute_device)
    in_device: list[ShardingType] = []
    in_host: list[ShardingType] = []
    for sharding_type in SHARDING_TYPES:
        if sharding_type not in offered or sharding_type not in named:
            continue
        if sharding_type == "data_parallel" and table.is_sequence and compute_device == "cpu":
            continue  # fbgemm's dense operator pools sequences on the CPU
        usable = set(sharder.compute_kernels(sharding_type, compute_device)) & set(kernels or (_FUSED, _DENSE, CACHED))
        if (_DENSE if sharding_type == "data_parallel" else _FUSED) in usable:
            in_device.append(sharding_type)
        if CACHED in usable and sharding_type != "data_parallel":
            in_host.append(sharding_type)
    if not in_device and not in_host:
        raise ValueError(
            f"table {table.path!r} cannot be sharded: its constraints allow sharding_types {list(named)} with "
            f"compute_kernels {kernels or 'all'}, its sharder {type(sharder).__name__} offers {offered} on {compute_device}, "
            f"and planned are {', '.join(SHARDING_TYPES)} with kernels {_FUSED}, {_DENSE} for data_parallel and {CACHED}; "
            "allow one of these"
        )
    if table.dim % DIM_MULTIPLE == 0:
        return Ways(tuple(in_device or in_host), bool(in_host), not in_device)
    if "data_parallel" not in in_device:
        raise ValueError(
            f"table {table.path!r} has {table.dim} columns, which fbgemm's fused operator refuses, and may not be copied to "
            f"every rank (data_parallel) either, so TorchRec cannot run it in any way; widen it to {padded_dim(table.dim)} "
            "columns, or allow data_parallel"
        )
    return Ways(("data_parallel",), may_cache=False, is_copied=True)


def unguarded(is_sequence: bool, has_feature_processor: bool) -> list[ShardingType]:
    """The ways in which a table may be sharded that nobody named, most as TorchRec's planner has it."""
    guarded: tuple[str, ...] = _ONLY_IF_NAMED_FOR_FEATURE_PROCESSORS if has_feature_processor else ()
    if is_sequence:
        guarded = (*guarded, *_ONLY_IF_NAMED_FOR_SEQUENCES)
    return [each for each in SHARDING_TYPES if each not in guarded]


def is_processed(collection: str) -> bool:
    """Whether a collection of this class has feature processors."""
    return "FeatureProcessed" in collection


def class_name(kind: type[nn.Module]) -> str:
    """Name of a class with its package, as in `ModelTable.collection`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def planned_table(table: ModelTable) -> PlannedTable:
    """The table as TorchRec's plans name it."""
    return PlannedTable(
        module_path=table.module_path,
        name=table.name,
        rows=table.rows,
        dim=table.dim,
        data_type=table.precision.upper(),
        is_sequence=table.pooling == "none",
    )


def with_default_ways(
    constraints: Constraints, tables: Mapping[str, ModelTable], *, device_type: str, widen: bool = False
) -> tuple[Constraints, list[str]]:
    """The constraints, narrowed to ways to shard that TorchRec's default sharders can run, and notes on that.

    Columns of sequences are split only where that is named, since TorchRec runs them in equally wide shards only.

    Args:
        constraints: of the placement.
        tables: of the model, by their names in the task. One of a collection without a default sharder counts as one of an
            `EmbeddingBagCollection` or `EmbeddingCollection`.
        device_type: of the ranks: `cuda` or `cpu`.
        widen: whether tables are planned as if they had the next multiple of 4 columns, which fbgemm's operators need.

    Raises:
        ValueError: no way to shard is left for a table, or it is to be cached and cannot be.
    """
    sharders: dict[str, ModuleSharder[Any]] = {
        class_name(kind): sharder for kind, sharder in get_module_to_default_sharders().items()
    }
    types_of: dict[str, tuple[ShardingType, ...]] = {}
    uncached, copied = set(constraints.never_cached), []
    for name, table in tables.items():
        is_sequence = table.pooling == "none"
        plain = class_name(EmbeddingCollection if is_sequence else EmbeddingBagCollection)
        named = constraints.sharding_types_for(name)
        if name not in constraints.sharding_types_of and named in _GENERAL:
            free = unguarded(is_sequence, is_processed(table.collection))
            named = tuple(each for each in named if each in free)
        planned = planned_table(table)
        if widen:
            planned = replace(planned, dim=padded_dim(table.dim))
        found = ways(planned, sharders.get(table.collection, sharders[plain]), device_type, named=named)
        if set(found.sharding_types) < set(constraints.sharding_types_for(name)):
            types_of[name] = found.sharding_types
        if found.is_copied:
            copied.append(name)
        if not found.may_cache:
            uncached.add(name)
    if both := sorted(uncached & set(constraints.cached_share_of)):
        raise ValueError(
            f"tables {shown(both)} are to be cached, but TorchRec cannot cache them on {device_type} ranks as they are "
            "sharded; leave their cached share out"
        )
    notes = []
    if narrowed := [name for name in types_of if name not in copied]:
        notes.append(f"{shown(narrowed)} are sharded only in ways that TorchRec's default sharders run them in")
    if copied:
        notes.append(
            f"{shown(copied)} are copied to every rank, since fbgemm's fused operators take multiples of 4 columns only; "
            "widen them in the model to have them sharded"
        )
    caching = constraints.caching and not uncached >= set(tables)
    return replace(
        constraints,
        sharding_types_of={**constraints.sharding_types_of, **types_of},
        caching=caching,
        never_cached=frozenset(uncached) if caching else constraints.never_cached,
    ), notes


def check_copies(
    model: ModelTables,
    constraints: Constraints,
    optimizer: Optimizer,
    room_bytes: int,
    precision: Precision | None = None,
) -> None:
    """Refuse tables whose columns are no multiple of 4 where copies of them exceed a device.

    Args:
        model: whose tables are to be placed.
        constraints: as narrowed to what TorchRec runs.
        optimizer: whose state a copy has, too.
        room_bytes: for tables on a device.
        precision: of all weights; None for each table's own.

    Raises:
        ValueError: there is too little room.
    """
    copies = {
        name: _copy_bytes(table, precision or table.precision, optimizer)
        for name, table in model.by_name.items()
        if table.dim != table.planned_dim and constraints.sharding_types_for(name) == ("data_parallel",)
    }
    if sum(copies.values()) <= room_bytes:
        return
    name = max(copies, key=lambda each: copies[each])
    table = model.by_name[name]
    others = f", with {len(copies) - 1} more such tables {gib(sum(copies.values()))}" if len(copies) > 1 else ""
    raise ValueError(
        f"table {name!r} has {table.dim} columns, which fbgemm's fused operator refuses, so it could only be copied to every "
        f"rank, but a copy needs {gib(copies[name])}{others}, more than the {gib(room_bytes)} of a device; widen it to "
        f"{table.planned_dim} columns to have it sharded"
    )


def _copy_bytes(table: ModelTable, precision: Precision, optimizer: Optimizer) -> int:
    per_row = table.planned_dim * (BYTES_PER_WEIGHT[precision] + BYTES_PER_ELEMENT_STATE[optimizer])
    return table.rows * (per_row + BYTES_PER_ROW[precision] + BYTES_PER_ROW_STATE[optimizer])
