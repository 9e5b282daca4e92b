"""What TorchRec can run: placements as `ShardingPlan`s and back, and the sharding types that it offers for each table.

Plans are for `DistributedModelParallel`, with the shards that TorchRec's own planner makes. Sharding types follow from a
table's sharder, and from TorchRec's and dreamshard's constraints.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from torch import nn
from torchrec.distributed.comm import get_local_size, get_topology_group_world_size
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.types import ParameterConstraints, Shard, ShardingOption, Storage
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ShardingPlan
from torchrec.distributed.utils import get_device_type
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule

from dreamshard.constraints import Constraints
from dreamshard.files import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS, InputError, reading, shown
from dreamshard.plan import Plan, PlannedTable, read_plan
from dreamshard.tables import (
    DIM_MULTIPLE,
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    ModelTable,
    Placement,
    ShardingType,
    Tables,
    even_columns,
    padded_dim,
)
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.torchrec.models import Sharders, class_name, tables_of

CACHED = "fused_uvm_caching"
DEFAULT_SHARE = 0.2
"""TorchRec's load factor of a cache if none is given."""


def shards_of(
    task: PlacementTask, options: Iterable[tuple[ShardingOption, int]], devices_per_host: int
) -> tuple[list[Shard], Shards]:
    """TorchRec's shards of options, each with its table's number, and the same as arrays; without a rank on device 0.

    Writes the storage of each shard. Tables of fewer rows than devices leave some without; these shards are left out.
    """
    held, fields, storage = list[Shard](), [], cache(Storage)  # copies share one
    for option, table in options:
        kind, share = SHARDING_TYPES.index(planned_type(option.sharding_type)), math.nan
        if option.compute_kernel == CACHED:
            share = min(max(option.cache_load_factor or DEFAULT_SHARE, 1e-9), 1.0)
        for shard in option.shards:
            shard.storage = storage(0, 0)
            if 0 not in shard.size:
                held.append(shard)
                fields.append((table, kind, shard.rank or 0, *shard.offset, *shard.size, share))
    of_shard = torch.from_numpy(np.array(fields, np.float64).reshape(-1, 8))
    table, kind, device = of_shard[:, :3].long().T
    rows, columns = of_shard[:, 3:7].long().view(-1, 2, 2).cumsum(1).unbind(2)
    shards = Shards(task, table, device, kind, rows, columns, of_shard[:, 7], devices_per_host)
    for shard, hbm, ddr in zip(held, shards.device_bytes.tolist(), shards.host_bytes.tolist(), strict=True):
        shard.storage = storage(hbm, ddr)
    return held, shards


def sharding_options(
    placement: Placement,
    tables: Sequence[ModelTable],
    model: nn.Module,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    batch_size: int = BATCH_SIZE,
) -> list[ShardingOption]:
    """`placement` as the options that TorchRec's planner would have selected; `tables`, as the model has them, in its order.

    The plan has a table's real columns if the placement has them rounded up to a multiple of 4.

    Args:
        placement: device `d` is rank `d`.
        model: may be on the `meta` device.
        constraints: TorchRec's own, by its name of a table; `cache_params` get the placement's load factor.
        batch_size: samples per rank.

    Raises:
        ValueError: TorchRec cannot run a table sharded like this.
    """
    paths = {table.module_path: model.get_submodule(table.module_path) for table in tables}
    weights = {
        (path, f".{name}".split(".")[-2]): weight
        for path, module in paths.items()
        for name, weight in module.named_parameters()
    }
    options, lists = [], cache(lambda *ends: ([last - first for first, last in ends], [first for first, _ in ends]))
    for path, module in paths.items():
        for part in module.modules():
            if isinstance(part, HashZchManagedCollisionModule) and part.buckets() % placement.num_devices:
                raise ValueError(
                    f"{path!r} hashes ids into {part.buckets()} buckets, which cannot be divided among "
                    f"{placement.num_devices} ranks; make total_num_buckets a multiple of them"
                )
    for sharding, table in zip(placement.tables, tables, strict=True):
        kind, share = sharding.sharding_type, sharding.cached_share
        widths = {min(end, table.dim) - start for start, end in sharding.ranges(table.dim)}
        if table.pooling == "none" and len(widths) > 1:
            raise ValueError(
                f"sequence table {table.path!r} is split into columns {sharding.columns}, but TorchRec runs sequences in "
                "equally wide shards only; split it evenly"
            )
        limits = (constraints or {}).get(table.name, ParameterConstraints())
        blocks = sharding.blocks(table.rows, table.dim, placement.num_devices, placement.devices_per_host)
        options.append(
            ShardingOption(
                name=table.name,
                tensor=weights[table.module_path, table.name],
                module=(table.module_path, paths[table.module_path]),
                input_lengths=per_feature(limits.pooling_factors, table),
                batch_size=batch_size,
                sharding_type=kind,
                partition_by=get_partition_by_type(kind),
                compute_kernel="dense" if kind == "data_parallel" else "fused" if share is None else CACHED,
                shards=[
                    Shard(*lists(rows, (start, min(end, table.dim))), rank=rank) for rank, rows, (start, end) in blocks
                ],
                cache_params=share and replace(limits.cache_params or CacheParams(), load_factor=share),
                is_pooled=table.pooling != "none",
                enforce_hbm=limits.enforce_hbm,
                stochastic_rounding=limits.stochastic_rounding,
                bounds_check_mode=limits.bounds_check_mode,
                output_dtype=limits.output_dtype,
            )
        )
    return options


def per_feature(values: list[float], table: ModelTable) -> list[float]:
    """A value for each feature of a table, of one for all or one for each."""
    return values * len(table.features) if len(values) == 1 else values


def load_plan(
    path: str | Path,
    model: nn.Module,
    sharders: Sharders | None = None,
    device_type: str | None = None,
    world_size: int | None = None,
) -> ShardingPlan:
    """The plan of a PLAN.json, for `DistributedModelParallel(model, plan=...)`.

    Call it after `init_process_group`. Without a process group, the plan's own ranks and hosts are assumed.

    Args:
        path: of a file by `dreamshard place --format torchrec`, or of a model's current plan, such as
            `s3://bucket/plans/ads/current.json`.
        model: as it is given to `DistributedModelParallel`; may be on the `meta` device.
        sharders: as they are given to `DistributedModelParallel`; by default TorchRec's own.
        device_type: of the ranks, `cuda` or `cpu`; by default that of gloo, else of this machine.
        world_size: of the ranks that share the tables: `sharding_group_size` of a `DMPCollection`; by default all.

    Raises:
        ValueError: the plan is not of this model, of the running ranks and hosts, or TorchRec cannot run it.

    >>> sorted(ds.load_plan("plan.json", model).plan[""])
    ['item', 'user']
    """
    plan, tables, is_running = read_plan(path), tables_of(model, sharders=sharders), dist.is_initialized()
    if others := sorted(plan.tables.keys() - set(tables.tables.names)):
        raise ValueError(
            f"{path} was not made for this model: it has no table {shown(others)}; plan again, or promote a newer plan"
        )
    placement = plan.placement(tables.tables)
    options = sharding_options(placement, tables.details, model)
    device_type = device_type or ("cpu" if is_running and dist.get_backend() == "gloo" else get_device_type())
    running = dist.get_world_size() if is_running else plan.num_devices
    ranks = world_size or running
    per_host = host = plan.devices_per_host or get_local_size(ranks)  # groups need not be hosts
    if is_running and ranks == running:  # rows of a host may be spread over its whole NVLink domain
        per_host, host = get_topology_group_world_size(ranks), get_local_size(ranks)
    wanted = placement.devices_per_host if placement.sharding_types & set(ON_ONE_HOST) else per_host
    if (ranks, per_host) != (plan.num_devices, wanted):
        raise ValueError(
            f"{path} is a plan for {plan.num_devices} ranks, {plan.devices_per_host or 'any number'} per host, but {ranks} "
            f"are running, {per_host} per host; plan again with --devices {ranks} --devices-per-host {per_host}"
        )
    return to_sharding_plan(options, Topology(ranks, device_type, local_world_size=host))


def reshard_delta(old: ShardingPlan, new: ShardingPlan) -> dict[str, tuple[float, EmbeddingModuleShardingPlan]]:
    """The changed tables by module, for `DistributedModelParallel.reshard(delta, module)`, with MiB of fp32 weights as there.

    Raises:
        ValueError: TorchRec cannot move a table so; it moves whole tables, and column shards of one width. To other widths,
            TorchRec 1.8 loses the state of row-wise Adagrad and cannot send that of Adagrad.
    """
    delta = {}
    for path, module in new.plan.items():
        before = old.plan[path]
        changed = {name: spec for name, spec in module.items() if spec != before[name]}
        for name, spec in changed.items():
            was, kind, ranks = before[name].sharding_type, spec.sharding_type, spec.ranks
            is_movable = was == kind and kind in ON_ONE_DEVICE and len(set(ranks)) == len(ranks)
            both = (before[name], spec) if is_movable else ()
            if len({shard.shard_sizes[1] for table in both for shard in table.sharding_spec.shards}) != 1:
                raise ValueError(
                    f"TorchRec cannot reshard {f'{path}.{name}'.lstrip('.')!r} from {was} to {kind} on ranks {ranks}; keep "
                    "its sharding type, widths and one shard per rank, or restart"
                )
        if changed:
            shards = chain.from_iterable(spec.sharding_spec.shards for spec in changed.values())
            weights = sum(math.prod(shard.shard_sizes) for shard in shards)
            delta[path] = weights * 4 / 2**20, EmbeddingModuleShardingPlan(changed)
    return delta


_Corner = tuple[Annotated[int, Field(ge=0, le=MOST_ROWS)], Annotated[int, Field(ge=0, le=MOST_COLUMNS)]]


class _Shard(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    shard_offsets: _Corner
    shard_sizes: _Corner
    placement: Annotated[str, BeforeValidator(str)]


class _Parameter(BaseModel):
    """The planned part of a `ParameterSharding`, as an object or as `ShardingPlan._serialize` writes it."""

    model_config = ConfigDict(from_attributes=True)

    sharding_type: str
    compute_kernel: str
    ranks: list[Annotated[int, Field(ge=0, lt=MOST_DEVICES)]] | None = None
    shards: Annotated[list[_Shard] | None, BeforeValidator(lambda spec: getattr(spec, "shards", spec))] = Field(
        None, validation_alias=AliasChoices("sharding_spec", "shards")
    )
    cache_params: Any = None


def current_plan(
    source: ShardingPlan | str | bytes,
    tables: Tables | None = None,
    *,
    num_devices: int | None = None,
    devices_per_host: int | None = None,
    name: str = "the plan",
) -> Plan:
    """TorchRec's plan as a `Plan`: rank `r` is device `r`; tables are called `module.table` if two have one name.

    Args:
        source: TorchRec's own object, or what `ShardingPlan._serialize` gave, as JSON.
        tables: of the model; give them if the plan lists no shards, as of data-parallel tables.
        num_devices: ranks, of which the plan may leave the last ones empty.
        devices_per_host: ranks of a host; by default as GPUs are numbered.
        name: of the plan in errors.

    Raises:
        ValueError: the text is no plan of TorchRec, or a table has a sharding type or storage that is not planned.

    >>> sharding_plan = ds.load_plan("plan.json", model)
    >>> ds.current_plan(sharding_plan).tables == plan.tables
    True
    """
    with reading(name, "is not a TorchRec plan", "give the current plan"):
        modules = source.plan if isinstance(source, ShardingPlan) else json.loads(source)
        modules = modules.get("plan", modules)
        parameters = [
            (path, table, _Parameter.model_validate(spec))
            for path, module in modules.items()
            for table, spec in module.items()
        ]
        counts = Counter(table for _, table, _ in parameters)
        ranks = 1 + max((rank for *_, spec in parameters for rank in spec.ranks or ()), default=0)
        if not any(spec.sharding_type in ON_EVERY_DEVICE for *_, spec in parameters):
            ranks = max(ranks, num_devices or 0)
        per_host = devices_per_host or _ranks_per_host([spec for *_, spec in parameters])
        planned = {}
        for path, table, spec in parameters:
            called = f"{path}.{table}".lstrip(".") if counts[table] > 1 else table
            planned[called] = _planned(called, spec, tables, ranks, per_host or ranks)
    return Plan(num_devices=ranks, devices_per_host=per_host, placer="torchrec", tables=planned)


def planned_type(sharding_type: str) -> Any:
    """The sharding type as it is planned; `table_column_wise` also keeps the columns on one host."""
    return "column_wise" if sharding_type == "table_column_wise" else sharding_type


def _planned(called: str, spec: _Parameter, tables: Tables | None, ranks: int, per_host: int) -> PlannedTable:
    """How a table is sharded; its columns are rounded up to a multiple of 4."""
    kind, cached = planned_type(spec.sharding_type), spec.compute_kernel == CACHED
    is_known = kind in SHARDING_TYPES and spec.compute_kernel in ("fused", "dense", CACHED)
    if not is_known or not (spec.ranks or kind in ON_EVERY_DEVICE):
        raise InputError(
            f"table {called!r} is sharded {kind} with kernel {spec.compute_kernel} on ranks {spec.ranks}; give one of "
            f"{', '.join(SHARDING_TYPES)} with kernel fused, dense or {CACHED}, and ranks"
        )
    share = getattr(spec.cache_params, "load_factor", None)  # which JSON leaves out
    step, held = per_host if kind in ON_ONE_HOST else 1, []
    first: dict[tuple[int, int], int] = {}
    if spec.shards:
        rows, dim = (max(shard.shard_offsets[i] + shard.shard_sizes[i] for shard in spec.shards) for i in (0, 1))
        for rank, shard in zip(spec.ranks or (), spec.shards, strict=False):
            (row, start), (height, width) = shard.shard_offsets, shard.shard_sizes
            columns = start, padded_dim(dim) if start + width == dim else start + width
            first[columns] = min(rank, first.get(columns, rank))
            held += [(rank, (row, row + height), columns)] if height else []
    elif tables is None or called not in tables.names:
        raise InputError(
            f"the plan does not say how many rows and columns table {called!r} has; give the model's tables"
        )
    else:  # types, kernels and ranks only: shards of equal width, as TorchRec cuts them
        size = tables.named([called])
        rows, dim = int(size.rows), int(size.dim)
        starts = (spec.ranks or [0])[::step] if kind in SPLIT_BY_COLUMNS else (spec.ranks or [0])[:1]
        first = dict(zip(even_columns(dim, len(starts)), starts, strict=True))
    ranges = sorted(first)
    planned = PlannedTable(
        sharding_type=kind,
        columns=tuple(ranges) if kind in SPLIT_BY_COLUMNS else (),
        where=() if kind in ON_EVERY_DEVICE else tuple(first[columns] // step for columns in ranges),
        cached_share=(share or DEFAULT_SHARE) if cached else None,
        rows=rows,
        dim=padded_dim(dim),
    )
    blocks = planned.blocks(rows, planned.dim, ranks, per_host)
    if spec.shards and sorted(held) != sorted(block for block in blocks if block[1][0] < block[1][1]):
        raise InputError(f"the shards of table {called!r} are not those of a {kind} table on {ranks} ranks; plan again")
    return planned


def _ranks_per_host(parameters: Sequence[_Parameter]) -> int | None:
    """Ranks of a host as table-row-wise tables and the numbers of GPUs say; None if they do not say."""
    for spec in parameters:
        if spec.sharding_type == "table_row_wise" and spec.ranks:
            return len(spec.ranks)
    places = [
        shard.placement.removeprefix("rank:").split("/cuda:") for spec in parameters for shard in spec.shards or ()
    ]
    gpus = [(int(rank), int(gpu[0])) for rank, *gpu in places if gpu]
    per_host = math.gcd(*(rank - gpu for rank, gpu in gpus))  # `rank:8/cuda:0` is the first of the second host
    if per_host and any(gpu >= per_host or gpu > rank for rank, gpu in gpus):
        raise InputError(
            f"the plan's GPUs {shown([f'rank:{r}/cuda:{g}' for r, g in gpus])} fit no size of hosts; give one"
        )
    return per_host or None


def narrowed(
    constraints: Constraints,
    tables: Mapping[str, ModelTable],
    *,
    device_type: str,
    sharders: Sharders | None = None,
    given: Mapping[str, ParameterConstraints] | None = None,
    widen: bool = False,
) -> tuple[Constraints, list[str]]:
    """The constraints, narrowed to sharding types that TorchRec runs, and notes on that.

    TorchRec runs columns of sequences in equally wide shards only, and feature processors with rows apart only in part, so
    these are used only if a constraint names them. So is a grid if `given` is, as by TorchRec's planner.

    Args:
        tables: of the model, by their names in the task.
        device_type: of the ranks: `cuda` or `cpu`.
        sharders: of the model's collections; TorchRec's own if None. A table of a collection without a sharder counts as one
            of an `EmbeddingBagCollection` or `EmbeddingCollection`.
        given: TorchRec's own constraints, by TorchRec's name of a table.
        widen: whether the plan need not run in TorchRec: of tables with the next multiple of 4 columns, in any module.

    Raises:
        ValueError: no sharding type is left for a table, or it is to be cached and cannot be.
    """
    offers = {class_name(sharder.module_type): sharder for sharder in sharders or get_default_sharders()}
    types_of: dict[str, tuple[ShardingType, ...]] = {}
    shares, narrowest = dict(constraints.cached_share_of), dict(constraints.narrowest_columns_of)
    narrower, copied = [], []
    for name, table in tables.items():
        if not widen and table.module_class.startswith(("torch.nn.", "fbgemm_gpu.")):  # no sharder shards these
            raise ValueError(
                f"{table.path!r} is in no collection of TorchRec, so it cannot shard it; put it in an "
                "EmbeddingBagCollection, or use --format json"
            )
        limits = (given or {}).get(table.name, ParameterConstraints())
        is_sequence, is_processed = table.pooling == "none", "FeatureProcessed" in table.module_class
        usual = EmbeddingCollection if is_sequence else EmbeddingBagCollection
        sharder = offers.get(table.module_class) or offers[class_name(usual)]
        allowed = constraints.sharding_types_for(name)
        is_general = allowed in (SHARDING_TYPES, ON_ONE_DEVICE) and name not in constraints.sharding_types_of
        is_named = limits.sharding_types or not is_general
        rare: dict[ShardingType, bool] = {
            "grid_shard": given is not None or is_processed,
            "column_wise": is_sequence,
            "row_wise": is_processed,
            "table_row_wise": is_processed,
        }
        left_out = {kind for kind in rare if rare[kind] and not is_named}
        is_odd = not widen and table.dim % DIM_MULTIPLE != 0
        if is_odd:  # for fbgemm's fused operator
            left_out = set(SHARDING_TYPES) - {"data_parallel"}
            copied.append(name)
        if is_sequence and device_type == "cpu":
            left_out |= {"data_parallel"}  # fbgemm's dense operator would pool it
        kernels = {*(limits.compute_kernels or ("fused", "dense", CACHED))}
        offered = sharder.sharding_types(device_type)
        # a sharder may offer none of the usual types
        for choice in (allowed,) if is_named else (allowed, SHARDING_TYPES):
            types = [kind for kind in choice if kind in (limits.sharding_types or choice) and kind not in left_out]
            usable = {
                kind: kernels & {*sharder.compute_kernels(kind, device_type)} for kind in types if kind in offered
            }
            in_device = [kind for kind, of in usable.items() if ("dense" if kind == "data_parallel" else "fused") in of]
            in_host = [kind for kind, of in usable.items() if CACHED in of and kind != "data_parallel"]
            if in_device or in_host:
                break
        else:
            raise ValueError(
                f"table {table.path!r} of {table.dim} columns: {type(sharder).__name__} offers {offered} on {device_type}, "
                f"none of the sharding_types {types} with kernels {sorted(kernels)}, which dreamshard plans; allow another, "
                "or widen odd tables to a multiple of 4 columns"
            )
        if not is_odd and set(in_device or in_host) < set(allowed):
            narrower.append(name)
        types_of[name] = tuple(in_device or in_host)
        if not in_device or not in_host:
            share = 0.0 if in_device else getattr(limits.cache_params, "load_factor", None) or DEFAULT_SHARE
            if bool(share) != bool(shares.setdefault(name, share)):
                raise ValueError(f"table {table.path!r} is to be cached and never to be cached; drop one")
        if limits.min_partition is not None:
            narrowest[name] = max(limits.min_partition, narrowest.get(name, 0))
    notes = []
    if narrower and given is None:
        notes.append(f"{shown(narrower)} take only the sharding types that TorchRec's default sharders offer them")
    if copied:
        notes.append(
            f"{shown(copied)} are copied to every rank, since fbgemm's fused operators take multiples of 4 columns only; "
            "widen them in the model to have them sharded"
        )
    return replace(
        constraints,
        sharding_types_of={**constraints.sharding_types_of, **types_of},
        caching=bool(constraints.caching) and any(shares.get(name) != 0 for name in tables),
        cached_share_of=shares,
        narrowest_columns_of=narrowest,
    ), notes


def check_given(
    given: Mapping[str, ParameterConstraints], tables: Sequence[ModelTable], device: str, batch: int
) -> None:
    """Refuse TorchRec's constraints that are for no table or that no plan can honour; `batch` is samples per rank."""
    if unknown := sorted(set(given) - {table.name for table in tables}):
        raise ValueError(
            f"constraints are given for {unknown[:5]}, which are no tables of this model; correct the names"
        )
    for table in tables:
        limits, counts = given.get(table.name, ParameterConstraints()), (1, len(table.features))
        refused = {
            "num_poolings": len(limits.num_poolings or [1]) not in counts,
            "pooling_factors": len(limits.pooling_factors) not in counts,
            "batch_sizes": set(limits.batch_sizes or [batch]) != {batch},
            "feature_names": set(limits.feature_names or table.features) != set(table.features),
            "device_group": limits.device_group not in (None, device),
            "key_value_params": limits.key_value_params,
            "use_virtual_table": limits.use_virtual_table,
            "use_dynamicemb": getattr(limits, "use_dynamicemb", False),  # of NVIDIA's derived class
            "cache_params": limits.compute_kernels != [CACHED] and getattr(limits.cache_params, "load_factor", None),
        }
        for field in filter(refused.get, refused):
            raise ValueError(
                f"table {table.path!r} of features {list(table.features)}, {batch} samples on {device} and kernels "
                f"{limits.compute_kernels or 'all'} cannot have {field}={getattr(limits, field)}; correct or omit it"
            )
