"""The ways to shard that a sharder of TorchRec can run a table in."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torchrec.distributed.types import ModuleSharder

from dreamshard.sharding import SHARDING_TYPES, ShardingType
from dreamshard.tables import DIM_MULTIPLE, padded_dim
from dreamshard.torchrec.planned_tables import PlannedTable

CACHED = "fused_uvm_caching"
_FUSED, _DENSE = "fused", "dense"
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
