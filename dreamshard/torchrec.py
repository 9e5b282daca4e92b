"""The bridge to TorchRec: its embedding modules as `Tables`, a plan as its `ShardingPlan`.

The only module that imports torchrec; nothing else imports this one, so the rest works without torchrec installed.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dreamshard.plan import Plan, Shard
from dreamshard.tables import NUM_BINS, Tables


def tables_of(module: EmbeddingBagCollection, pooling_factors: Mapping[str, float] | None = None) -> Tables:
    """The tables of a TorchRec module.

    Args:
        module: as the model is built with; on the `meta` device it takes no memory.
        pooling_factors: mean lookups per sample by table name; a table it lacks counts 1 per feature that looks it up.

    Returns:
        Tables without measured lookups: every distinct row counts once in `bins`, and `lookups` describe one sample.
    """
    configs = module.embedding_bag_configs()
    known = pooling_factors or {}
    pooling = [float(known.get(config.name, max(1, len(config.feature_names)))) for config in configs]
    bins = torch.zeros(len(configs), NUM_BINS)
    bins[:, 0] = 1.0
    lookups = torch.tensor([max(1, round(factor)) for factor in pooling])
    rows = torch.tensor([config.num_embeddings for config in configs])
    return Tables(
        tuple(config.name for config in configs),
        rows,
        torch.tensor([config.embedding_dim for config in configs]),
        torch.tensor(pooling),
        bins,
        lookups,
        torch.minimum(lookups, rows),
    )


def sharding_plan(
    plan: Plan, rows: Mapping[str, int], *, module_path: str = "", device_type: str = "cuda", ranks_per_host: int = 8
) -> ShardingPlan:
    """`plan` as TorchRec's own sharding plan: table-wise, or column-wise where a table is split.

    Args:
        plan: which device holds which table; device `d` is rank `d`.
        rows: hash size by table name.
        module_path: of the `EmbeddingBagCollection` within the model, e.g. `model.sparse_arch.ebc`.
        device_type: `cuda` or `cpu`.
        ranks_per_host: ranks that share a host; rank `r` uses its device `r % ranks_per_host`.
    """
    by_table: dict[str, list[Shard]] = {}
    for shard in plan.shards:
        by_table.setdefault(shard.table, []).append(shard)
    parameters = EmbeddingModuleShardingPlan()
    for table, shards in by_table.items():
        parameters[table] = _parameter(
            sorted(shards, key=lambda shard: shard.column_start), rows[table], device_type, ranks_per_host
        )
    return ShardingPlan({module_path: parameters})


def to_json(plan: ShardingPlan) -> str:
    """The fields of each `ParameterSharding`, by module path and table name; `from_json` reads it back."""
    modules: dict[str, dict[str, Any]] = {}
    for path, parameters in plan.plan.items():
        modules[path] = {name: _fields(parameter) for name, parameter in parameters.items()}
    return json.dumps(modules, indent=2)


def from_json(text: str) -> ShardingPlan:
    """The real `ShardingPlan` that `to_json`, or `dreamshard place --format torchrec`, wrote.

    Hand it to `DistributedModelParallel(model, plan=...)`.

    Raises:
        ValueError: the text is not of that form.
    """
    try:
        modules: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
        return ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: _from_fields(entry) for name, entry in parameters.items()})
                for path, parameters in modules.items()
            }
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"this is not a TorchRec sharding plan ({type(error).__name__}: {error}), so no model can use it; "
            "give what `dreamshard place --format torchrec` wrote"
        ) from error


def _parameter(shards: list[Shard], rows: int, device_type: str, ranks_per_host: int) -> ParameterSharding:
    metadata = [
        ShardMetadata(
            shard_offsets=[0, shard.column_start],
            shard_sizes=[rows, shard.column_end - shard.column_start],
            placement=f"rank:{shard.device}/{device_type}"
            + (f":{shard.device % ranks_per_host}" if device_type == "cuda" else ""),
        )
        for shard in shards
    ]
    return ParameterSharding(
        sharding_type="table_wise" if len(shards) == 1 else "column_wise",
        compute_kernel="fused",
        ranks=[shard.device for shard in shards],
        sharding_spec=EnumerableShardingSpec(metadata),
    )


def _fields(parameter: ParameterSharding) -> dict[str, Any]:
    spec = parameter.sharding_spec
    shards = spec.shards if isinstance(spec, EnumerableShardingSpec) else []
    return {
        "sharding_type": parameter.sharding_type,
        "compute_kernel": parameter.compute_kernel,
        "ranks": parameter.ranks,
        "sharding_spec": [
            {
                "shard_offsets": list(shard.shard_offsets),
                "shard_sizes": list(shard.shard_sizes),
                "placement": str(shard.placement),
            }
            for shard in shards
        ],
    }


def _from_fields(entry: dict[str, Any]) -> ParameterSharding:
    return ParameterSharding(
        sharding_type=entry["sharding_type"],
        compute_kernel=entry["compute_kernel"],
        ranks=entry["ranks"],
        sharding_spec=EnumerableShardingSpec(
            [
                ShardMetadata(
                    shard_offsets=shard["shard_offsets"],
                    shard_sizes=shard["shard_sizes"],
                    placement=shard["placement"],
                )
                for shard in entry["sharding_spec"]
            ]
        ),
    )
