"""A TorchRec sharding plan as a file that knows which model, ranks and devices it is for.

```
{"world_size": 4, "ranks_per_host": 2, "device_type": "cuda",
 "tables": [{"module_path": "ebc", "name": "user", "rows": 100, "dim": 16, "data_type": "FP32"}, ...],
 "plan": {"ebc": {"user": {"sharding_type": ..., "compute_kernel": ..., "ranks": [...], "sharding_spec": [...]}, ...}}}
```

`from_json` also reads a bare `plan`, and what TorchRec's own `ShardingPlan._serialize` gives.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
)
from torchrec.types import DataType

from dreamshard.files.foreign import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS, brief, file_bytes, json_content, reading
from dreamshard.placement import ON_ONE_HOST
from dreamshard.torchrec.planned_tables import PlannedTable, planned_tables

_PROBLEM = "is not a TorchRec sharding plan"
_ADVICE = "so no model can use it; give what `dreamshard place --format torchrec` wrote"
logger = logging.getLogger(__name__)
_SHOWN = 5  # tables in a message
_PLAIN = ("sharding_type", "compute_kernel", "ranks", "enforce_hbm", "stochastic_rounding")
_PLAIN_CACHE = ("load_factor", "reserved_memory", "prefetch_pipeline")


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A sharding plan and what it is for; fields are None in files that do not say.

    Attributes:
        tables: that the plan shards.
        ranks_per_host: ranks `0..ranks_per_host-1` are on the first host, and so on.
        device_type: `cuda` or `cpu`.
    """

    plan: ShardingPlan
    tables: tuple[PlannedTable, ...] | None = None
    world_size: int | None = None
    ranks_per_host: int | None = None
    device_type: str | None = None


def to_json(
    plan: ShardingPlan,
    tables: Sequence[PlannedTable] | None = None,
    *,
    world_size: int | None = None,
    ranks_per_host: int | None = None,
    device_type: str | None = None,
) -> str:
    """The text of a plan file; `tables` are those of the model, by default none, so that no model is refused.

    Raises:
        ValueError: a field of the plan cannot be written, such as the statistics of a cache.
    """
    content: dict[str, Any] = {
        "world_size": world_size,
        "ranks_per_host": ranks_per_host,
        "device_type": device_type,
    }
    if tables is not None:
        content["tables"] = [asdict(table) for table in tables if table.module_path in plan.plan]
    modules = {
        path: {name: _to_fields(name, parameter) for name, parameter in parameters.items()}
        for path, parameters in plan.plan.items()
    }
    return json.dumps(content | {"plan": modules}, indent=1)


def from_json(text: str | bytes) -> ShardingPlan:
    """The plan of a plan file, for `DistributedModelParallel(model, plan=...)`; `load_plan` also checks the model.

    Raises:
        ValueError: the text is something else.
    """
    return parse_plan_file(text).plan


def parse_plan_file(text: str | bytes, source: str = "this") -> PlanFile:
    """Read the text of a plan file; `source` names it in errors.

    Raises:
        ValueError: the text is something else.
    """
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        is_file = "plan" in content and not any("sharding_type" in value for value in content["plan"].values())
        modules = content["plan"] if is_file else content
        plan = ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: _from_fields(given) for name, given in parameters.items()})
                for path, parameters in modules.items()
            }
        )
        about = content if is_file else {}
        listed = about.get("tables")
        tables = None if listed is None else tuple(_table(table) for table in listed)
        counts = {name: about.get(name) for name in ("world_size", "ranks_per_host")}
        ranks = {
            name: None if count is None else _whole(count, name, MOST_DEVICES, 1) for name, count in counts.items()
        }
    return PlanFile(
        plan=plan,
        tables=tables,
        world_size=ranks["world_size"],
        ranks_per_host=ranks["ranks_per_host"],
        device_type=about.get("device_type"),
    )


def _table(content: Any) -> PlannedTable:
    table = PlannedTable(**content)
    for text in (table.module_path, table.name, table.data_type):
        if not isinstance(text, str):
            raise TypeError(f"a table is named or typed {brief(text)}, not by a text")
    _whole(table.rows, f"rows of {brief(table.name)}", MOST_ROWS, 1)
    _whole(table.dim, f"dim of {brief(table.name)}", MOST_COLUMNS, 1)
    return table


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


def load_plan(
    path: str | Path, model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None
) -> ShardingPlan:
    """The plan of a file, for `DistributedModelParallel(model, plan=...)`, if it was made for this model and these ranks.

    Args:
        path: of what `dreamshard place --format torchrec` wrote.
        model: as it is given to `DistributedModelParallel`; may be on the `meta` device.
        sharders: as they are given to `DistributedModelParallel`; by default TorchRec's own.

    Raises:
        ValueError: there is no such file, it is no plan, its tables are not the model's, its shards do not cover
            them, or it is for other ranks, hosts or devices than the default process group has.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}, so nothing can be sharded by it; check the path")
    file = parse_plan_file(file_bytes(Path(path), _PROBLEM, _ADVICE), str(path))
    if file.tables is None:
        raise ValueError(
            f"{path} does not say which tables it is for, so it cannot be checked against the model; write it again with "
            "`dreamshard place --format torchrec`, or use from_json to load it unchecked"
        )
    _check_tables(str(path), file, planned_tables(model, sharders))
    _check_shards(str(path), file)
    _check_ranks(str(path), file)
    return file.plan


def _check_tables(path: str, file: PlanFile, tables: Sequence[PlannedTable]) -> None:
    """Compare the file's tables with the model's, module by module.

    Raises:
        ValueError: they differ.
    """
    held = {table for table in tables if table.module_path in file.plan.plan}
    planned = set(file.tables or ())
    if held == planned:
        if left := sorted({table.module_path for table in tables} - set(file.plan.plan)):
            logger.warning("%s has no plan for the modules %s of the model, which TorchRec will not shard", path, left)
        return
    in_model, in_plan = {table.path: table for table in held}, {table.path: table for table in planned}
    differences = [
        f"{name!r} is {_shape(in_plan[name])} in the plan and {_shape(in_model[name])} in the model"
        for name in sorted(in_plan.keys() & in_model.keys())
        if in_plan[name] != in_model[name]
    ]
    differences += [f"{name!r} is only in the plan" for name in sorted(in_plan.keys() - in_model.keys())]
    differences += [f"{name!r} is only in the model" for name in sorted(in_model.keys() - in_plan.keys())]
    more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    elsewhere = sorted({table.module_path for table in tables} - set(file.plan.plan))
    hint = f" (the model also has tables in {elsewhere[:_SHOWN]})" if elsewhere else ""
    raise ValueError(
        f"{path} was not made for this model: {'; '.join(differences[:_SHOWN])}{more}{hint}, so tables would be sharded "
        "wrongly; plan again for the model as it is now"
    )


def _shape(table: PlannedTable) -> str:
    return f"{table.rows} x {table.dim} {table.data_type}"


def _check_ranks(path: str, file: PlanFile) -> None:
    """Compare the file's ranks, hosts and devices with those of the default process group; without one, warn.

    Raises:
        ValueError: they differ.
    """
    if not dist.is_initialized():
        logger.warning(
            "there is no process group yet, so %s was not compared with the ranks that run it (it is for %s ranks, %s per "
            "host, on %s); call torch.distributed.init_process_group() before load_plan",
            path,
            file.world_size,
            file.ranks_per_host,
            file.device_type,
        )
        return
    ranks = dist.get_world_size()
    if file.world_size not in (None, ranks):
        raise ValueError(
            f"{path} is a plan for {file.world_size} ranks, but {ranks} are running, so some shards would have no rank or "
            f"some ranks no shard; start {file.world_size} ranks, or plan again with --devices {ranks}"
        )
    backend = dist.get_backend()
    runs_on = "cuda" if backend == "nccl" else None if torch.cuda.is_available() else "cpu"
    if None not in (file.device_type, runs_on) and file.device_type != runs_on:
        raise ValueError(
            f"{path} is a plan for {file.device_type} ranks, but these run {backend} on {runs_on}, so its shards would be on "
            f"devices that are not there; plan again with --device-type {runs_on}"
        )
    on_hosts = any(each.sharding_type in ON_ONE_HOST for module in file.plan.plan.values() for each in module.values())
    if file.ranks_per_host is not None and (on_hosts or file.device_type == "cuda"):
        per_host = get_local_size(ranks)
        if file.ranks_per_host != per_host:
            raise ValueError(
                f"{path} is a plan for hosts of {file.ranks_per_host} ranks, but TorchRec takes these to have {per_host} "
                "(LOCAL_WORLD_SIZE), so shards would be on other hosts and devices than planned; plan again with "
                f"--devices-per-host {per_host}, or start {file.ranks_per_host} ranks per host"
            )


def _check_shards(path: str, file: PlanFile) -> None:
    """Compare the sizes of a plan's shards with its tables.

    Raises:
        ValueError: the shards of a table do not have its rows and columns together.
    """
    sizes: Mapping[tuple[str, str], tuple[int, int]] = {
        (table.module_path, table.name): (table.rows, table.dim) for table in file.tables or ()
    }
    for (module, name), (rows, dim) in sizes.items():
        parameter = file.plan.plan[module].get(name) if module in file.plan.plan else None
        spec = parameter.sharding_spec if parameter is not None else None
        if not isinstance(spec, EnumerableShardingSpec):
            continue
        held = sum(shard.shard_sizes[0] * shard.shard_sizes[1] for shard in spec.shards)
        ends = [max(shard.shard_offsets[axis] + shard.shard_sizes[axis] for shard in spec.shards) for axis in (0, 1)]
        if held != rows * dim or ends != [rows, dim]:
            raise ValueError(
                f"{path} has shards of table {name!r} that hold {held} weights up to row {ends[0]} and column {ends[1]}, but "
                f"the table is {rows} x {dim}, so it was changed after it was written; write it again with `dreamshard place "
                "--format torchrec`"
            )


def _whole(value: object, field: str, most: int, least: int = 0) -> int:
    """A whole number of a file.

    Raises:
        TypeError: it is none, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TypeError(f"{field} is {brief(value)}, not a whole number from {least} to {most}")
    return value
