"""Placements as `ShardingPlan`s of `DistributedModelParallel`, with the shards of TorchRec's planner, as JSON, and back.

TorchRec writes plans by `ShardingPlan._serialize` only, and reads none. Our file says which model and ranks it is for:

```
{"world_size": 4, "ranks_per_host": 2, "device_type": "cuda",
 "tables": [{"module_path": "ebc", "name": "user", "rows": 100, "dim": 16, "data_type": "FP32"}, ...],
 "plan": {"ebc": {"user": {"sharding_type": ..., "compute_kernel": ..., "ranks": [...], "sharding_spec": [...]}, ...}}}
```
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt
from torch import nn
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.sharding_plan import placement as device_of
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

from dreamshard.files.foreign import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS, InputError, json_content, reading
from dreamshard.files.text import shown
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Block,
    Placement,
    TableSharding,
)
from dreamshard.plan import Plan, Shard, shards_of
from dreamshard.tables import Tables, padded_dim
from dreamshard.torchrec.models import Sharders, discover
from dreamshard.workloads.table_list import ModelTable

CACHED = "fused_uvm_caching"
DEFAULT_SHARE = 0.2
"""TorchRec's load factor of a cache if none is given."""

_PROBLEM = "is not a TorchRec sharding plan"
_ADVICE = "so no model can use it; give what `dreamshard place --format torchrec` wrote"
logger = logging.getLogger(__name__)

Offset = Annotated[StrictInt, Field(ge=0, le=MOST_ROWS)]
Count = Annotated[StrictInt, Field(ge=1, le=MOST_DEVICES)]
Rank = Annotated[StrictInt, Field(ge=0, lt=MOST_DEVICES)]


class _Fields(BaseModel):
    """Fields as TorchRec's classes have them; a field that a file cannot keep is an error."""

    model_config = ConfigDict(from_attributes=True)


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
    ranks: list[Rank] | None = None
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
        own = dict(self)
        if self.cache_params is not None:
            own["cache_params"] = CacheParams(**dict(self.cache_params))
        if self.sharding_spec is not None:
            own["sharding_spec"] = EnumerableShardingSpec(
                [ShardMetadata(list(s.shard_offsets), list(s.shard_sizes), s.placement) for s in self.sharding_spec]
            )
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
        kept = {name: getattr(table, name) for name in ("module_path", "name", "rows", "dim")}
        return cls(**kept, data_type=table.precision.upper())

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
        modules: Any = plan.plan
        own = {
            path: {t: _Parameter.model_validate(each) for t, each in module.items()} for path, module in modules.items()
        }
        return cls(plan=own, **fields)

    def sharding_plan(self) -> ShardingPlan:
        """TorchRec's own object."""
        return ShardingPlan(
            {
                path: EmbeddingModuleShardingPlan({name: own.as_torchrec() for name, own in module.items()})
                for path, module in self.plan.items()
            }
        )

    def entries(self) -> Iterator[tuple[str, str, _Parameter]]:
        """Module path, name and sharding of each table."""
        for path, module in self.plan.items():
            for name, own in module.items():
                yield path, name, own


def sharding_plan(
    placement: Placement,
    tables: Sequence[ModelTable],
    *,
    device_type: str,
    ranks_per_host: int | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
) -> ShardingPlan:
    """`placement` as TorchRec's plan; `tables` and `fields` are in its order.

    The plan has a table's real columns if the placement has them rounded up to a multiple of 4.

    Args:
        placement: device `d` is rank `d`.
        tables: as the model has them.
        device_type: `cuda` or `cpu`.
        ranks_per_host: rank `r` uses GPU `r % ranks_per_host` of its host; the placement's devices per host if None.
        fields: further fields of `ParameterSharding` of each table; `cache_params` get the placement's load factor.

    Raises:
        ValueError: two tables of a module have the same name, or TorchRec cannot run a table sharded like this.
    """
    per_host = ranks_per_host or placement.devices_per_host
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    for sharding, table, further in zip(placement.tables, tables, fields or [{}] * len(tables), strict=True):
        parameters = modules.setdefault(table.module_path, EmbeddingModuleShardingPlan())
        if table.name in parameters:
            raise ValueError(f"module {table.module_path!r} has two tables {table.name!r}; rename one of them")
        widths = {min(end, table.dim) - start for start, end in sharding.ranges(table.dim)}
        if table.pooling == "none" and len(widths) > 1:
            raise ValueError(
                f"sequence table {table.path!r} is split into columns {sharding.columns}, but TorchRec runs sequences in "
                "equally wide shards only; split it evenly"
            )
        given = {name: value for name, value in further.items() if name != "cache_params"}
        if sharding.sharding_type == "data_parallel":
            ranks = list(range(placement.num_devices))
            parameters[table.name] = ParameterSharding("data_parallel", "dense", ranks, **given)
            continue
        if sharding.cached_share is not None:
            cache = vars(further.get("cache_params") or CacheParams())
            given["cache_params"] = CacheParams(**{**cache, "load_factor": sharding.cached_share})
        blocks = sharding.blocks(table.rows, table.dim, placement.num_devices, placement.devices_per_host)
        parameters[table.name] = ParameterSharding(
            sharding_type=sharding.sharding_type,
            compute_kernel="fused" if sharding.cached_share is None else CACHED,
            ranks=[rank for rank, _, _ in blocks],
            sharding_spec=EnumerableShardingSpec(
                [
                    ShardMetadata(
                        [first, start],
                        [last - first, min(end, table.dim) - start],
                        device_of(device_type, rank, per_host),
                    )
                    for rank, (first, last), (start, end) in blocks
                ]
            ),
            **given,
        )
    return ShardingPlan(modules)


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
        file = PlanFile.model_validate(content if is_file else {"plan": content})
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
    file = parse_plan_file(Path(path).read_bytes(), str(path))
    if file.tables is None:
        raise ValueError(
            f"{path} does not say which tables it is for, so it cannot be checked against the model; write it again with "
            "`dreamshard place --format torchrec`, or use from_json to load it unchecked"
        )
    _check_tables(str(path), file, [FileTable.of(table) for table in discover(model, sharders)[0]])
    _check_ranks(str(path), file)
    return _complete(file, str(path))


def current_plan(
    source: ShardingPlan | str | bytes,
    tables: Tables | Sequence[ModelTable] | None = None,
    *,
    num_devices: int | None = None,
    devices_per_host: int | None = None,
    name: str = "the plan",
) -> Plan:
    """TorchRec's plan as a `Plan`: rank `r` is device `r`; `Plan.placement` checks that its shards are complete.

    A table is called as in TorchRec, with its module path in front if two modules have tables of that name.

    Args:
        source: TorchRec's own object, or JSON that `dreamshard place --format torchrec` or `ShardingPlan._serialize` gave.
        tables: of the model; give rows and columns if the plan lists no shards, as of data-parallel tables.
        num_devices: ranks; by default as the file says, else one more than the highest rank of the plan.
        devices_per_host: ranks of a host; by default as the file says, else as GPUs are numbered.
        name: of the plan in errors.

    Raises:
        ValueError: the text is no plan of TorchRec, or a table is sharded in a way or kept in storage that is not planned.
    """
    file = PlanFile.of(source) if isinstance(source, ShardingPlan) else parse_plan_file(source, name)
    entries = list(file.entries())
    counts = Counter(table for _, table, _ in entries)
    world_size = (
        num_devices or file.world_size or 1 + max((r for *_, own in entries for r in own.ranks or ()), default=0)
    )
    per_host = devices_per_host or file.ranks_per_host or _ranks_per_host([own.as_torchrec() for *_, own in entries])
    sizes, shards = _sizes(file, tables), []
    with reading(name, _PROBLEM, "so nothing can be compared with it; give the plan in use"):
        for path, table, own in entries:
            full = f"{path}.{table}" if path else table
            called = full if counts[table] > 1 else table
            size = sizes.get(full, sizes.get(table))
            shards += _shards(own, called, size, world_size, per_host or world_size, name)
    plan = Plan(num_devices=world_size, placer="torchrec", shards=tuple(shards))
    return plan if plan.is_by_columns else replace(plan, devices_per_host=per_host)


def planned_type(sharding_type: str) -> Any:
    """The way to shard as it is planned; `table_column_wise` also keeps the columns on one host."""
    return "column_wise" if sharding_type == "table_column_wise" else sharding_type


def _shards(
    own: _Parameter, called: str, size: tuple[int, int] | None, world_size: int, per_host: int, plan: str
) -> list[Shard]:
    """The shards of a table; the last range of columns ends at the next multiple of 4."""
    way = planned_type(own.sharding_type)
    if way not in SHARDING_TYPES or own.compute_kernel not in ("fused", "dense", CACHED):
        raise InputError(
            f"table {called!r} of {plan} is sharded by {way} with kernel {own.compute_kernel}, whose cost is unknown; known "
            f"are {', '.join(SHARDING_TYPES)} with kernels fused, dense and {CACHED}"
        )
    share, spec, ranks = None, own.sharding_spec or [], own.ranks or []
    if own.compute_kernel == CACHED:
        load_factor = own.cache_params.load_factor if own.cache_params else None
        share = DEFAULT_SHARE if load_factor is None else load_factor
    if spec:
        rows, dim = (max(each.shard_offsets[i] + each.shard_sizes[i] for each in spec) for i in (0, 1))
    elif size is None:
        raise InputError(f"{plan} does not say how many rows and columns table {called!r} has; give the model's tables")
    else:
        rows, dim = size
    blocks: list[Block] = []
    for rank, shard in zip(ranks, spec, strict=False):
        (row, start), (height, width) = shard.shard_offsets, shard.shard_sizes
        end = padded_dim(dim) if start + width == dim else start + width
        blocks += [(rank, (row, row + height), (start, end))] if height else []
    if not spec:  # types, kernels and ranks only: shards of equal width, as TorchRec cuts them
        step = per_host if way in ON_ONE_HOST else 1
        where = () if way in ON_EVERY_DEVICE else tuple(rank // step for rank in ranks[::step])
        ends = [dim * part // len(where) for part in range(len(where))] if way in SPLIT_BY_COLUMNS else []
        columns = tuple(pairwise([*ends, padded_dim(dim)])) if ends else ()
        made = TableSharding(way, columns, where)
        blocks = made.blocks(rows, padded_dim(dim), len(ranks) if way in ON_EVERY_DEVICE else world_size, per_host)
    return shards_of(called, way, share, rows, blocks)


def _complete(file: PlanFile, source: str) -> ShardingPlan:
    """TorchRec's own object, if every table that is not copied has its shards."""
    for path, name, own in file.entries():
        if not own.sharding_spec and own.sharding_type != "data_parallel":
            raise InputError(f"{source} {_PROBLEM} (table {name!r} of {path!r} has no sharding_spec), {_ADVICE}")
    return file.sharding_plan()


def _check_tables(path: str, file: PlanFile, tables: Sequence[FileTable]) -> None:
    """Compare the file's tables with the model's, module by module, and its shards with them."""
    in_model = {table.path: table for table in tables if table.module_path in file.plan}
    in_plan = {table.path: table for table in file.tables or ()}
    differences = []
    for name in sorted(in_plan.keys() | in_model.keys()):
        ours, theirs = in_plan.get(name), in_model.get(name)
        if ours is None or theirs is None:
            differences.append(f"{name!r} is only in the {'plan' if ours else 'model'}")
        elif ours != theirs:
            differences.append(f"{name!r} is {ours} in the plan and {theirs} in the model")
    if differences:
        raise ValueError(f"{path} was not made for this model: {shown(differences)}; plan again")
    if elsewhere := sorted({table.module_path for table in tables} - set(file.plan)):
        logger.warning("%s has no plan for the modules %s, which TorchRec will not shard", path, elsewhere)
    for table in in_plan.values():
        own = file.plan.get(table.module_path, {}).get(table.name)
        spec = own.sharding_spec if own is not None else None
        held = sum(shard.shard_sizes[0] * shard.shard_sizes[1] for shard in spec or ())
        if spec and held != table.rows * table.dim:
            raise ValueError(
                f"{path} has shards of table {table.name!r} that hold {held} weights, but the table is {table.rows} x "
                f"{table.dim}; write the plan again"
            )


def _check_ranks(path: str, file: PlanFile) -> None:
    """Compare the file's ranks, hosts and devices with those of the default process group; without one, warn."""
    if not dist.is_initialized():
        logger.warning(
            "there is no process group yet, so the ranks of %s are not checked; call torch.distributed.init_process_group() "
            "before load_plan",
            path,
        )
        return
    ranks = dist.get_world_size()
    if file.world_size not in (None, ranks):
        raise ValueError(
            f"{path} is a plan for {file.world_size} ranks, but {ranks} are running; start {file.world_size} ranks, or plan "
            f"again with --devices {ranks}"
        )
    runs_on = "cuda" if dist.get_backend() == "nccl" else None if torch.cuda.is_available() else "cpu"
    if None not in (file.device_type, runs_on) and file.device_type != runs_on:
        raise ValueError(
            f"{path} is a plan for {file.device_type} ranks, but these are {runs_on}; plan again with --device-type {runs_on}"
        )
    on_hosts = any(own.sharding_type in ON_ONE_HOST for *_, own in file.entries())
    per_host = get_local_size(ranks)
    if (on_hosts or file.device_type == "cuda") and file.ranks_per_host not in (None, per_host):
        raise ValueError(
            f"{path} is a plan for hosts of {file.ranks_per_host} ranks, but TorchRec takes these to have {per_host} "
            f"(LOCAL_WORLD_SIZE); plan again with --devices-per-host {per_host}, or start {file.ranks_per_host} per host"
        )


def _ranks_per_host(parameters: Sequence[ParameterSharding]) -> int | None:
    """Ranks of a host as table-row-wise tables and the numbers of GPUs say; None if they do not say."""
    for each in parameters:
        if each.sharding_type == "table_row_wise" and each.ranks:
            return len(each.ranks)
    specs = [each.sharding_spec for each in parameters if isinstance(each.sharding_spec, EnumerableShardingSpec)]
    places: list[Any] = [shard.placement for spec in specs for shard in spec.shards]
    gpus = [(place.rank(), place.device().index) for place in places if place.device().index is not None]
    return 1 + max(gpu for _, gpu in gpus) if any(rank != gpu for rank, gpu in gpus) else None


def _sizes(file: PlanFile, tables: Tables | Sequence[ModelTable] | None) -> dict[str, tuple[int, int]]:
    """Rows and columns of each table, by its name and by its path."""
    if isinstance(tables, Tables):
        sizes = zip(tables.rows.tolist(), tables.dim.tolist(), strict=True)
        return dict(zip(tables.names, sizes, strict=True))
    listed = [*(file.tables or ()), *(tables or ())]
    return {key: (table.rows, table.dim) for table in listed for key in (table.name, table.path)}
