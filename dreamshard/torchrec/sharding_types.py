"""The sharding types that a table's sharder offers and TorchRec's and dreamshard's constraints allow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dreamshard.constraints import Constraints
from dreamshard.files import shown
from dreamshard.model_table import ModelTable
from dreamshard.placement import ON_ONE_DEVICE, SHARDING_TYPES, ShardingType
from dreamshard.tables import DIM_MULTIPLE
from dreamshard.torchrec.models import Sharders, class_name
from dreamshard.torchrec.plans import CACHED, DEFAULT_SHARE

_GENERAL = (SHARDING_TYPES, ON_ONE_DEVICE)  # choices that name no single types
_PLAIN_TORCH = ("torch.nn.", "fbgemm_gpu.")  # packages of modules that no sharder of TorchRec's own shards


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
        constraints: dreamshard's own.
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
        if not widen and table.collection.startswith(_PLAIN_TORCH):
            raise ValueError(
                f"{table.path!r} is in no collection of TorchRec, so it cannot shard it; put it in an "
                "EmbeddingBagCollection, or use --format json"
            )
        limits = (given or {}).get(table.name, ParameterConstraints())
        usual_class = EmbeddingCollection if table.pooling == "none" else EmbeddingBagCollection
        sharder = offers.get(table.collection) or offers[class_name(usual_class)]
        allowed = constraints.sharding_types_for(name)
        is_named = limits.sharding_types or name in constraints.sharding_types_of or allowed not in _GENERAL
        left_out = set() if is_named else _unless_named(table, is_planner=given is not None)
        is_odd = not widen and table.dim % DIM_MULTIPLE != 0
        if is_odd:  # for fbgemm's fused operator
            left_out = set(SHARDING_TYPES) - {"data_parallel"}
            copied.append(name)
        if table.pooling == "none" and device_type == "cpu":
            left_out |= {"data_parallel"}  # fbgemm's dense operator would pool it
        kernels = {*(limits.compute_kernels or ("fused", "dense", CACHED))}
        offered = sharder.sharding_types(device_type)
        # a sharder may offer none of the usual types
        for usual in (allowed,) if is_named else (allowed, SHARDING_TYPES):
            types = [kind for kind in usual if kind in (limits.sharding_types or usual) and kind not in left_out]
            usable = {
                kind: kernels & {*sharder.compute_kernels(kind, device_type)} for kind in types if kind in offered
            }
            in_device = [kind for kind in usable if ("dense" if kind == "data_parallel" else "fused") in usable[kind]]
            in_host = [kind for kind in usable if CACHED in usable[kind] and kind != "data_parallel"]
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
            load_factor = limits.cache_params.load_factor if limits.cache_params else None
            share = 0.0 if in_device else DEFAULT_SHARE if load_factor is None else load_factor
            if bool(share) != bool(shares.setdefault(name, share)):
                raise ValueError(f"table {table.path!r} is to be cached and never to be cached; drop one")
            shares[name] = share
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
            "cache_params": limits.compute_kernels != [CACHED] and getattr(limits.cache_params, "load_factor", None),
        }
        for field in filter(refused.get, refused):
            raise ValueError(
                f"table {table.path!r} of features {list(table.features)}, {batch} samples on {device} and kernels "
                f"{limits.compute_kernels or 'all'} cannot have {field}={getattr(limits, field)}; correct or omit it"
            )


def _unless_named(table: ModelTable, *, is_planner: bool) -> set[ShardingType]:
    """Sharding types that a table takes only if a constraint names them."""
    types: set[ShardingType] = {"grid_shard"} if is_planner else set()
    if table.pooling == "none":
        types.add("column_wise")
    if "FeatureProcessed" in table.collection:
        types |= {"row_wise", "table_row_wise", "grid_shard"}
    return types
