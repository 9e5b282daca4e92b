"""TorchRec's constraints together with dreamshard's own, so that a placement respects both."""

from collections.abc import Sequence
from dataclasses import replace

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.model_tables import shown
from dreamshard.sharding import ShardingType


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
