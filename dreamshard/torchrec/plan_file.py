"""A TorchRec sharding plan as a file that knows which model, ranks and devices it is for.

```
{"world_size": 4, "ranks_per_host": 2, "device_type": "cuda",
 "tables": [{"module_path": "ebc", "name": "user", "rows": 100, "dim": 16, "data_type": "FP32"}, ...],
 "plan": {"ebc": {"user": {"sharding_type": ..., "compute_kernel": ..., "ranks": [...], "sharding_spec": [...]}, ...}}}
```

TorchRec writes plans only one way, by `ShardingPlan._serialize`; `from_json` also reads that, and a bare `plan`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError
from torch import nn
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.types import DataType

from dreamshard.files.foreign import (
    MOST_COLUMNS,
    MOST_DEVICES,
    MOST_ROWS,
    InputError,
    file_bytes,
    json_content,
    reading,
)
from dreamshard.placement import ON_ONE_HOST
from dreamshard.torchrec.discovery import Sharders, discover
from dreamshard.workloads.model_tables import ModelTable

_PROBLEM = "is not a TorchRec sharding plan"
_ADVICE = "so no model can use it; give what `dreamshard place --format torchrec` wrote"
_SHOWN = 5  # tables in a message
logger = logging.getLogger(__name__)

Offset = Annotated[StrictInt, Field(ge=0, le=MOST_ROWS)]
Count = Annotated[StrictInt, Field(ge=1, le=MOST_DEVICES)]


class _Fields(BaseModel):
    """Fields as TorchRec's classes have them; a field that a file cannot keep is an error."""

    model_config = ConfigDict(from_attributes=True)

    def given(self) -> dict[str, Any]:
        """Fields with a value."""
        return {name: value for name, value in self if value is not None}


class _Shard(_Fields):
    shard_offsets: tuple[Offset, Offset]
    shard_sizes: tuple[Offset, Offset]
    placement: Annotated[str, BeforeValidator(str)]


class _Cache(_Fields):
    algorithm: CacheAlgorithm | None = None
    load_factor: float | None = None
    reserved_memory: float | None = None
    precision: DataType | None = None
    prefetch_pipeline: bool | None = None
    stats: None = None
    multipass_prefetch_config: None = None


class _Parameter(_Fields):
    sharding_type: str
    compute_kernel: str
    ranks: list[Annotated[StrictInt, Field(ge=0, lt=MOST_DEVICES)]] | None = None
    sharding_spec: Annotated[list[_Shard] | None, BeforeValidator(lambda spec: getattr(spec, "shards", spec))] = Field(
        None, validation_alias=AliasChoices("sharding_spec", "shards")
    )
    cache_params: _Cache | None = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: BoundsCheckMode | None = None
    output_dtype: DataType | None = None
    key_value_params: None = None

    def as_torchrec(self) -> ParameterSharding:
        """TorchRec's own object."""
        own = self.given()
        if self.cache_params is not None:
            own["cache_params"] = CacheParams(**self.cache_params.given())
        if self.sharding_spec is not None:
            shards = [
                ShardMetadata(list(s.shard_offsets), list(s.shard_sizes), s.placement) for s in self.sharding_spec
            ]
            own["sharding_spec"] = EnumerableShardingSpec(shards)
        return ParameterSharding(**own)


class FileTable(BaseModel):
    """A table that a plan shards, as the model has it."""

    model_config = ConfigDict(frozen=True)

    module_path: str
    name: str
    rows: Annotated[StrictInt, Field(ge=1, le=MOST_ROWS)]
    dim: Annotated[StrictInt, Field(ge=1, le=MOST_COLUMNS)]
    data_type: str = "FP32"

    @classmethod
    def of(cls, table: ModelTable) -> "FileTable":
        """What a file keeps of a model's table."""
        return cls(
            module_path=table.module_path,
            name=table.name,
            rows=table.rows,
            dim=table.dim,
            data_type=table.precision.upper(),
        )

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name

    def __str__(self) -> str:
        return f"{self.rows} x {self.dim} {self.data_type}"


class PlanFile(BaseModel):
    """A sharding plan and what it is for; fields are None in files that do not say.

    Attributes:
        tables: that the plan shards.
        ranks_per_host: ranks `0..ranks_per_host-1` are on the first host, and so on.
        device_type: `cuda` or `cpu`.
    """

    world_size: Count | None = None
    ranks_per_host: Count | None = None
    device_type: str | None = None
    tables: list[FileTable] | None = None
    plan: dict[str, dict[str, _Parameter]]

    @classmethod
    def of(cls, plan: ShardingPlan, **fields: Any) -> "PlanFile":
        """The file of TorchRec's own object."""
        modules = {
            path: {name: _Parameter.model_validate(own) for name, own in module.items()}
            for path, module in plan.plan.items()
        }
        return cls(plan=modules, **fields)

    def sharding_plan(self) -> ShardingPlan:
        """TorchRec's own object."""
        return ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: own.as_torchrec() for name, own in module.items()})
                for path, module in self.plan.items()
            }
        )


def to_json(
    plan: ShardingPlan,
    tables: Sequence[ModelTable],
    *,
    world_size: int,
    ranks_per_host: int | None = None,
    device_type: str | None = None,
) -> str:
    """The text of a plan file; `tables` are the model's.

    Raises:
        ValueError: a field of the plan cannot be written, such as the statistics of a cache.
    """
    file = PlanFile.of(
        plan,
        tables=[FileTable.of(table) for table in tables if table.module_path in plan.plan],
        world_size=world_size,
        ranks_per_host=ranks_per_host,
        device_type=device_type,
    )
    return file.model_dump_json(indent=1, exclude_none=True)


def from_json(text: str | bytes) -> ShardingPlan:
    """The plan of a plan file, for `DistributedModelParallel(model, plan=...)`; `load_plan` also checks the model.

    Raises:
        ValueError: the text is something else, or a plan that lists no shards.
    """
    return _complete(parse_plan_file(text), "this")


def parse_plan_file(text: str | bytes, source: str = "this") -> PlanFile:
    """Read the text of a plan file; `source` names it in errors.

    Raises:
        ValueError: the text is something else.
    """
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        is_file = "plan" in content and not any("sharding_type" in value for value in content["plan"].values())
        try:
            file = PlanFile.model_validate(content if is_file else {"plan": content})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{source} {_PROBLEM} ({where}: {first['msg']}), {_ADVICE}") from error
        file.sharding_plan()
    return file


def load_plan(path: str | Path, model: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
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
    _check_tables(str(path), file, [FileTable.of(table) for table in discover(model, sharders)[0]])
    _check_shards(str(path), file)
    _check_ranks(str(path), file)
    return _complete(file, str(path))


def _complete(file: PlanFile, source: str) -> ShardingPlan:
    """TorchRec's own object, if every table that is not copied has its shards."""
    for path, module in file.plan.items():
        for name, own in module.items():
            if not own.sharding_spec and own.sharding_type != "data_parallel":
                raise InputError(f"{source} {_PROBLEM} (table {name!r} of {path!r} has no sharding_spec), {_ADVICE}")
    return file.sharding_plan()


def _check_tables(path: str, file: PlanFile, tables: Sequence[FileTable]) -> None:
    """Compare the file's tables with the model's, module by module."""
    in_model = {table.path: table for table in tables if table.module_path in file.plan}
    in_plan = {table.path: table for table in file.tables or ()}
    elsewhere = sorted({table.module_path for table in tables} - set(file.plan))
    if in_model == in_plan:
        if elsewhere:
            logger.warning("%s has no plan for the modules %s, which TorchRec will not shard", path, elsewhere)
        return
    both = sorted(in_plan.keys() & in_model.keys())
    differences = [
        *(
            f"{name!r} is {in_plan[name]} in the plan and {in_model[name]} in the model"
            for name in both
            if in_plan[name] != in_model[name]
        ),
        *(f"{name!r} is only in the plan" for name in sorted(in_plan.keys() - in_model.keys())),
        *(f"{name!r} is only in the model" for name in sorted(in_model.keys() - in_plan.keys())),
    ]
    hint = f" (the model also has tables in {elsewhere[:_SHOWN]})" if elsewhere else ""
    raise ValueError(f"{path} was not made for this model: {'; '.join(differences[:_SHOWN])}{hint}; plan again")


def _check_shards(path: str, file: PlanFile) -> None:
    """Compare the sizes of a plan's shards with its tables."""
    for table in file.tables or ():
        own = file.plan.get(table.module_path, {}).get(table.name)
        shards = own.sharding_spec if own is not None else None
        if not shards:
            continue
        held = sum(shard.shard_sizes[0] * shard.shard_sizes[1] for shard in shards)
        ends = [max(shard.shard_offsets[axis] + shard.shard_sizes[axis] for shard in shards) for axis in (0, 1)]
        if held != table.rows * table.dim or ends != [table.rows, table.dim]:
            raise ValueError(
                f"{path} has shards of table {table.name!r} that hold {held} weights up to row {ends[0]} and column "
                f"{ends[1]}, but the table is {table.rows} x {table.dim}; write the plan again"
            )


def _check_ranks(path: str, file: PlanFile) -> None:
    """Compare the file's ranks, hosts and devices with those of the default process group; without one, warn."""
    if not dist.is_initialized():
        logger.warning(
            "there is no process group yet, so the ranks of %s are not checked (%s ranks, %s per host, on %s); call "
            "torch.distributed.init_process_group() before load_plan",
            path,
            file.world_size,
            file.ranks_per_host,
            file.device_type,
        )
        return
    ranks, backend = dist.get_world_size(), dist.get_backend()
    if file.world_size not in (None, ranks):
        raise ValueError(
            f"{path} is a plan for {file.world_size} ranks, but {ranks} are running; start {file.world_size} ranks, or plan "
            f"again with --devices {ranks}"
        )
    runs_on = "cuda" if backend == "nccl" else None if torch.cuda.is_available() else "cpu"
    if None not in (file.device_type, runs_on) and file.device_type != runs_on:
        raise ValueError(
            f"{path} is a plan for {file.device_type} ranks, but these run {backend} on {runs_on}; plan again with "
            f"--device-type {runs_on}"
        )
    on_hosts = any(own.sharding_type in ON_ONE_HOST for module in file.plan.values() for own in module.values())
    per_host = get_local_size(ranks)
    if (on_hosts or file.device_type == "cuda") and file.ranks_per_host not in (None, per_host):
        raise ValueError(
            f"{path} is a plan for hosts of {file.ranks_per_host} ranks, but TorchRec takes these to have {per_host} "
            f"(LOCAL_WORLD_SIZE); plan again with --devices-per-host {per_host}, or start {file.ranks_per_host} per host"
        )
