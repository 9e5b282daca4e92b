"""Constraints that keep a placement to what TorchRec's default sharders can run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torchrec.distributed.sharding_plan import get_module_to_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dreamshard.constraints import Constraints
from dreamshard.model_tables import ModelTable, shown
from dreamshard.sharding import ON_ONE_DEVICE, SHARDING_TYPES, ShardingType
from dreamshard.tables import padded_dim
from dreamshard.torchrec.planned_tables import PlannedTable
from dreamshard.torchrec.ways import is_processed, unguarded, ways

_GENERAL = (SHARDING_TYPES, ON_ONE_DEVICE)  # choices among which nobody named single ways


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
