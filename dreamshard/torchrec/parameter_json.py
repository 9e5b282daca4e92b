"""TorchRec's `ParameterSharding` as JSON, by module path and table name."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
)
from torchrec.types import DataType

_PLAIN = ("sharding_type", "compute_kernel", "ranks", "enforce_hbm", "stochastic_rounding")
_PLAIN_CACHE = ("load_factor", "reserved_memory", "prefetch_pipeline")


def modules_to_json(plan: ShardingPlan) -> dict[str, dict[str, Any]]:
    """The fields of each `ParameterSharding` that are set.

    Raises:
        ValueError: a field cannot be written, such as the statistics of a cache.
    """
    return {
        path: {name: _to_fields(name, parameter) for name, parameter in parameters.items()}
        for path, parameters in plan.plan.items()
    }


def plan_from_json(modules: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> ShardingPlan:
    """What `modules_to_json` or `ShardingPlan._serialize` gave.

    Raises:
        KeyError, TypeError, AttributeError: it is something else.
    """
    return ShardingPlan(
        {
            path: EmbeddingModuleShardingPlan({name: _from_fields(given) for name, given in parameters.items()})
            for path, parameters in modules.items()
        }
    )


def _to_fields(table: str, parameter: ParameterSharding) -> dict[str, Any]:
    written = {name: getattr(parameter, name) for name in _PLAIN if getattr(parameter, name) is not None}
    spec = parameter.sharding_spec
    written["sharding_spec"] = None
    if isinstance(spec, EnumerableShardingSpec):
        written["sharding_spec"] = [asdict(shard) | {"placement": str(shard.placement)} for shard in spec.shards]
    if parameter.bounds_check_mode is not None:
        written["bounds_check_mode"] = parameter.bounds_check_mode.name
    if parameter.output_dtype is not None:
        written["output_dtype"] = parameter.output_dtype.value
    if parameter.cache_params is not None:
        written["cache_params"] = _cache_to_fields(table, parameter.cache_params)
    if parameter.key_value_params is not None:
        raise ValueError(
            f"table {table!r} has key_value_params, which a plan file does not keep, so its storage would change; leave "
            "them out"
        )
    return written


def _cache_to_fields(table: str, cache: CacheParams) -> dict[str, Any]:
    known = {*_PLAIN_CACHE, "algorithm", "precision"}
    lost = [each.name for each in fields(cache) if each.name not in known and getattr(cache, each.name) is not None]
    if lost:
        raise ValueError(
            f"the cache_params of table {table!r} have {', '.join(lost)}, which a plan file does not keep; leave them out"
        )
    written = {name: getattr(cache, name) for name in _PLAIN_CACHE if getattr(cache, name) is not None}
    if cache.algorithm is not None:
        written["algorithm"] = cache.algorithm.name
    if cache.precision is not None:
        written["precision"] = cache.precision.value
    return written


def _from_fields(given: Mapping[str, Any]) -> ParameterSharding:
    shards = given.get("sharding_spec", given.get("shards"))
    if not shards and given["sharding_type"] != "data_parallel":
        raise KeyError("sharding_spec")
    read: dict[str, Any] = {name: given.get(name) for name in _PLAIN}
    read["compute_kernel"] = given["compute_kernel"]
    if given.get("bounds_check_mode") is not None:
        read["bounds_check_mode"] = BoundsCheckMode[given["bounds_check_mode"]]
    if given.get("output_dtype") is not None:
        read["output_dtype"] = DataType(given["output_dtype"])
    if given.get("cache_params") is not None:
        cache = dict(given["cache_params"])
        if "algorithm" in cache:
            cache["algorithm"] = CacheAlgorithm[cache["algorithm"]]
        if "precision" in cache:
            cache["precision"] = DataType(cache["precision"])
        read["cache_params"] = CacheParams(**cache)
    spec = None if not shards else EnumerableShardingSpec([ShardMetadata(**shard) for shard in shards])
    return ParameterSharding(**read, sharding_spec=spec)
