"""TorchRec's `ParameterConstraints` and what its sharders can do, as constraints of a placement, and dreamshard's own beside.

Each field is honoured or refused by name; docs/torchrec.md lists them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.model_tables import ModelTable, shown
from dreamshard.placement import SHARDING_TYPES, ShardingType
from dreamshard.tables import padded_dim
from dreamshard.torchrec.planned_tables import ShardableTable
from dreamshard.torchrec.sharding_plans import DEFAULT_SHARE
from dreamshard.torchrec.ways import CACHED, COPIED, is_processed, unguarded, ways

_ONLY_IF_NAMED = ("grid_shard",)
_PASSED_ON = ("enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")


@dataclass(frozen=True, kw_only=True)
class PlanningInputs:
    """What TorchRec's constraints mean for planning.

    Attributes:
        constraints: of the placement, by the tables' names in the task.
        pooling_factors: `T` lookups per sample of each table.
        fields: `T` further fields of each table's `ParameterSharding`.
        notes: what is accepted although costs do not depend on it, for people.
    """

    constraints: Constraints
    pooling_factors: tuple[float, ...]
    fields: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def planning_inputs(
    tables: Sequence[ShardableTable],
    details: Sequence[ModelTable],
    names: Sequence[str],
    given: Mapping[str, ParameterConstraints],
    *,
    compute_device: str,
    batch_size: int,
) -> PlanningInputs:
    """What to plan with.

    Args:
        tables: `T` of the model.
        details: `T`, the same tables.
        names: `T`, of the tables in the task.
        given: by TorchRec's name of a table; holds in every module that has one of that name.
        compute_device: of the topology.
        batch_size: samples per rank.

    Raises:
        ValueError: a constraint is for no table of the model, cannot be honoured, or leaves no way to shard a table.
    """
    if unknown := sorted(set(given) - {table.table.name for table in tables}):
        raise ValueError(
            f"constraints are given for {unknown[:5]}, which are no tables of this model, so they would be ignored; remove "
            "them, or correct the names"
        )
    types_of: dict[str, tuple[ShardingType, ...]] = {}
    shares: dict[str, float] = {}
    narrowest: dict[str, int] = {}
    never_cached: set[str] = set()
    fields: list[Mapping[str, Any]] = []
    pooling: list[float] = []
    notes: list[str] = []
    for table, detail, name in zip(tables, details, names, strict=True):
        own = given.get(table.table.name, ParameterConstraints())
        _refuse(own, table, detail, compute_device, batch_size)
        processed = is_processed(type(table.module).__name__)
        named = own.sharding_types or [
            each for each in unguarded(table.table.is_sequence, processed) if each not in _ONLY_IF_NAMED
        ]
        found = ways(table.table, table.sharder, compute_device, named=named, kernels=own.compute_kernels)
        types_of[name] = found.sharding_types
        if found.is_copied:
            notes.append(f"{name}: {COPIED.format(dim=table.table.dim, wider=padded_dim(table.table.dim))}")
        if found.must_cache:
            factor = own.cache_params.load_factor if own.cache_params else None
            shares[name] = DEFAULT_SHARE if factor is None else factor
        elif own.cache_params is not None and own.cache_params.load_factor is not None and found.may_cache:
            raise ValueError(
                f"the constraints of table {name!r} give a load factor of {own.cache_params.load_factor} and also allow "
                f"device memory, so it is unclear whether to cache it; give compute_kernels=['{CACHED}'] to cache "
                "it, or leave the load factor out to have one chosen"
            )
        elif not found.may_cache:
            never_cached.add(name)
        if own.min_partition is not None:
            narrowest[name] = own.min_partition
        fields.append(_passed_on(own, cached=found.may_cache))
        pooling.append(_pooling(own, detail, name))
        notes += _notes(own, detail, name)
    caching = len(never_cached | set(shares)) < len(names)
    return PlanningInputs(
        constraints=Constraints(
            sharding_types=SHARDING_TYPES,
            sharding_types_of=types_of,
            caching=caching,
            cached_share_of=shares,
            never_cached=frozenset(never_cached if caching else ()),
            narrowest_columns_of=narrowest,
        ),
        pooling_factors=tuple(pooling),
        fields=tuple(fields),
        notes=tuple(notes),
    )


def _refuse(
    own: ParameterConstraints, table: ShardableTable, detail: ModelTable, compute_device: str, batch_size: int
) -> None:
    """Raise for what a plan cannot honour."""
    name = table.table.path
    counts = {"num_poolings": own.num_poolings, "batch_sizes": own.batch_sizes}
    for field, values in counts.items():
        only = 1.0 if field == "num_poolings" else batch_size
        if values is not None and any(value != only for value in values):
            raise ValueError(
                f"table {name!r} has the constraint {field}={values}, but costs are known for one pooling per sample and "
                f"equal batches only, that is {only} for each feature; leave {field} out"
            )
    if own.feature_names is not None and sorted(own.feature_names) != sorted(detail.features):
        raise ValueError(
            f"table {name!r} has the constraint feature_names={own.feature_names}, but the model looks it up by "
            f"{list(detail.features)}; leave feature_names out, or correct them"
        )
    if own.device_group is not None and own.device_group != compute_device:
        raise ValueError(
            f"table {name!r} has the constraint device_group={own.device_group!r}, but this plan is for {compute_device} "
            "ranks, so the table would have no rank; plan each group by itself, with the tables of that group only"
        )
    if own.key_value_params is not None:
        raise ValueError(
            f"table {name!r} has the constraint key_value_params, but tables on SSD or parameter servers are not planned; "
            "leave them out"
        )
    if own.use_virtual_table:
        raise ValueError(
            f"table {name!r} has the constraint use_virtual_table, but a virtual table's size is unknown before training, so "
            "it is not planned; leave it out"
        )


def _pooling(own: ParameterConstraints, detail: ModelTable, name: str) -> float:
    """Lookups per sample of all features of a table; one factor holds for each of its features."""
    factors, features = list(own.pooling_factors), max(1, len(detail.features))
    if not all(0 <= factor < float("inf") for factor in factors):
        raise ValueError(
            f"table {name!r} has the constraint pooling_factors={factors}, but they count lookups per sample; give numbers "
            "that are not negative"
        )
    if len(factors) == 1:
        return float(factors[0] * features)
    if len(factors) != features:
        raise ValueError(
            f"table {name!r} has the constraint pooling_factors={factors}, but {features} features "
            f"({', '.join(detail.features)}); give one factor per feature, or one for all"
        )
    return float(sum(factors))


def _passed_on(own: ParameterConstraints, *, cached: bool) -> dict[str, Any]:
    """Fields that a table's `ParameterSharding` takes over."""
    fields = {field: getattr(own, field) for field in _PASSED_ON if getattr(own, field) is not None}
    if cached and isinstance(own.cache_params, CacheParams):
        fields["cache_params"] = own.cache_params
    return fields


def _notes(own: ParameterConstraints, detail: ModelTable, name: str) -> list[str]:
    notes = []
    if own.is_weighted or detail.is_weighted:
        notes.append(f"{name}: costs do not count the weights of lookups")
    if own.output_dtype is not None:
        notes.append(f"{name}: the plan has output_dtype {own.output_dtype}, but costs are of fp32 outputs")
    return notes


def with_further(base: Constraints, further: Constraints, names: Sequence[str]) -> Constraints:
    """`base` narrowed by `further`.

    Args:
        base: what TorchRec's constraints and its sharders allow.
        further: dreamshard's own. Its `sharding_types` count where they are not the default, which cannot be told from none;
            `caching` allows nothing that `base` does not.
        names: of the tables in the task.

    Raises:
        ValueError: `further` names tables that the task does not have, or contradicts `base`.
    """
    if unknown := sorted(further.tables_named() - set(names)):
        raise ValueError(
            f"placement_constraints name {shown(unknown)}, which are no tables of this model, so they would be ignored; "
            "correct the names (a table whose name occurs in several modules is called module.table)"
        )
    if uncached := sorted(name for name in further.cached_share_of if not base.may_be_cached(name)):
        raise ValueError(
            f"placement_constraints cache {shown(uncached)}, but TorchRec's constraints and sharders keep them in device "
            "memory; leave cached_share_of out, or allow the kernel fused_uvm_caching"
        )
    if kept := sorted(further.never_cached & set(base.cached_share_of)):
        raise ValueError(
            f"placement_constraints keep {shown(kept)} in device memory, but TorchRec's constraints allow them the kernel "
            "fused_uvm_caching only; leave never_cached out, or allow other kernels"
        )
    types_of = {name: _types(name, base, further) for name in names}
    shares = {**base.cached_share_of, **further.cached_share_of}
    narrowest = dict(base.narrowest_columns_of)
    for name, columns in further.narrowest_columns_of.items():
        narrowest[name] = max(columns, narrowest.get(name, columns))
    return replace(
        base,
        sharding_types_of=types_of,
        cached_share_of=shares,
        never_cached=base.never_cached | further.never_cached,
        narrowest_columns_of=narrowest,
        pinned=further.pinned,
        excluded=further.excluded,
        excluded_devices=further.excluded_devices,
        together=further.together,
        apart=further.apart,
        memory_bytes_of=further.memory_bytes_of,
        reserve_bytes=further.reserve_bytes,
    )


def _types(name: str, base: Constraints, further: Constraints) -> tuple[ShardingType, ...]:
    """Ways to shard a table that both allow."""
    allowed = base.sharding_types_for(name)
    if name not in further.sharding_types_of and further.sharding_types == UNCONSTRAINED.sharding_types:
        return allowed
    wanted = further.sharding_types_for(name)
    both = tuple(each for each in allowed if each in wanted)
    if not both:
        raise ValueError(
            f"placement_constraints allow table {name!r} only {', '.join(wanted)}, but TorchRec's constraints and sharders "
            f"only {', '.join(allowed)}, so no way to shard it is left; allow one of these"
        )
    return both
