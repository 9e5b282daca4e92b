"""A `Plan` as TorchRec's `ShardingPlan`."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from dreamshard.plan import Plan, Shard

_PLAIN_FIELDS = ("sharding_type", "compute_kernel", "ranks")


def sharding_plan(
    plan: Plan, rows: Mapping[str, int], *, module_path: str = "", device_type: str = "cuda", ranks_per_host: int = 8
) -> ShardingPlan:
    """`plan` as TorchRec's own: table-wise, or column-wise for split tables.

    Args:
        plan: device `d` is rank `d`.
        rows: hash size by table name.
        module_path: of the `EmbeddingBagCollection` within the model, e.g. `model.sparse_arch.ebc`.
        device_type: `cuda` or `cpu`.
        ranks_per_host: rank `r` uses GPU `r % ranks_per_host` of its host.
    """

    def metadata(shard: Shard) -> ShardMetadata:
        gpu = f":{shard.device % ranks_per_host}" if device_type == "cuda" else ""
        return ShardMetadata(
            shard_offsets=[0, shard.column_start],
            shard_sizes=[rows[shard.table], shard.column_end - shard.column_start],
            placement=f"rank:{shard.device}/{device_type}{gpu}",
        )

    parameters = EmbeddingModuleShardingPlan()
    for table, shards in plan.by_table().items():
        parameters[table] = ParameterSharding(
            sharding_type="table_wise" if len(shards) == 1 else "column_wise",
            compute_kernel="fused",
            ranks=[shard.device for shard in shards],
            sharding_spec=EnumerableShardingSpec([metadata(shard) for shard in shards]),
        )
    return ShardingPlan({module_path: parameters})


def to_json(plan: ShardingPlan) -> str:
    """The fields of each `ParameterSharding`, by module path and table name."""
    modules = {
        path: {name: _to_fields(parameter) for name, parameter in parameters.items()}
        for path, parameters in plan.plan.items()
    }
    return json.dumps(modules, indent=2, default=str)  # a shard's placement prints as it is parsed


def from_json(text: str) -> ShardingPlan:
    """Read what `to_json` or `dreamshard place --format torchrec` wrote, for `DistributedModelParallel(model, plan=...)`.

    Raises:
        ValueError: the text is something else.
    """
    try:
        modules: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
        return ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: _from_fields(fields) for name, fields in parameters.items()})
                for path, parameters in modules.items()
            }
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"this is not a TorchRec sharding plan ({type(error).__name__}: {error}), so no model can use it; "
            "give what `dreamshard place --format torchrec` wrote"
        ) from error


def _to_fields(parameter: ParameterSharding) -> dict[str, Any]:
    spec = parameter.sharding_spec
    shards = [asdict(shard) for shard in (spec.shards if isinstance(spec, EnumerableShardingSpec) else [])]
    return {name: getattr(parameter, name) for name in _PLAIN_FIELDS} | {"sharding_spec": shards}


def _from_fields(fields: dict[str, Any]) -> ParameterSharding:
    spec = EnumerableShardingSpec([ShardMetadata(**shard) for shard in fields["sharding_spec"]])
    return ParameterSharding(**{name: fields[name] for name in _PLAIN_FIELDS}, sharding_spec=spec)
