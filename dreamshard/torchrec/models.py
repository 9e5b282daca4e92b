"""The embedding tables of a model, their lookups from sample batches, and the model as a source of both.

Tables are the sharders', otherwise plain PyTorch's and FBGEMM's. Batches are `KeyedJaggedTensor`s. A table's features are
looked up together: each sample's lookups are those of the first feature, then of the next. Weights of lookups are left out,
since they do not change which rows are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardedModule
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dreamshard.files import digest, reading, shown
from dreamshard.tables import ModelTable, Precision, Tables
from dreamshard.workloads import (
    Lookups,
    ModelTables,
    Workload,
    WorkloadConfig,
    call,
    check_indices,
    index_dtype,
    listed_workload,
    model_tables,
)
from dreamshard.workloads.lookups import with_statistics

Sharders = Sequence[ModuleSharder[nn.Module]]

_TORCH_TYPES: dict[torch.dtype, Precision] = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_REFUSED = ("ITEPEmbeddingBagCollection", "ITEPEmbeddingCollection", "PECEmbeddingCollection")
"""Importing their modules would take seconds."""


def tables_of(
    model: object,
    pooling_factors: Mapping[str, float] | None = None,
    *,
    sharders: Sharders | None = None,
    defaults: Tables | None = None,
) -> ModelTables:
    """The tables of a model, and notes on parts that planning does not use.

    Args:
        model: takes no memory on the `meta` device.
        pooling_factors: mean lookups per sample, by name of a table or of a feature; by default 1 per feature.
        sharders: as for `discover`.
        defaults: dataset whose lookups fill in how often rows are looked up again; None for a Zipf law's expectation.

    Raises:
        ValueError: the model has no tables, or some that cannot be planned, which the message names.

    >>> ds.tables_of(model, pooling_factors={"item": 12.5}).task(num_devices=2, memory_bytes=2**30).num_devices
    2
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"an object of type {type(model).__name__} is not a torch.nn.Module; give the model")
    details, notes = discover(model, sharders)
    return model_tables(details, pooling_factors=pooling_factors, defaults=defaults, notes=notes)


def discover(model: nn.Module, sharders: Sharders | None = None) -> tuple[list[ModelTable], list[str]]:
    """The tables of a model that sharders shard, in the order of its modules, and notes on the rest.

    Args:
        model: perhaps on the `meta` device.
        sharders: None for TorchRec's own. These stand for derived classes too, and a model without any collection is read
            as if its `nn.EmbeddingBag`, `nn.Embedding` and FBGEMM table-batched embeddings were collections.

    Raises:
        ValueError: a collection or a table cannot be planned.
    """
    by_type = {sharder.module_type: sharder for sharder in sharders or get_default_sharders()}
    details: list[ModelTable] = []
    notes: list[str] = []
    placed: set[int] = set()
    for path, module, sharder in _sharded("", model, by_type, is_derived_too=sharders is None):
        weights = set(map(id, module.parameters()))
        if placed & weights:
            notes.append(f"{path} shares weights with another collection, so its tables are placed once")
            continue
        placed |= weights
        details += _tables_in(path, module, sharder)
        if type(module) not in by_type:
            notes.append(
                f"TorchRec's default sharders do not shard {type(module).__name__} {path}; give the trainer one"
            )
        if isinstance(module, BaseManagedCollisionEmbeddingCollection):
            notes.append(f"{path} remaps ids before lookups; batches are counted as they are, without that")
    if not details and sharders is None and (details := list(_plain_tables(model))):
        return details, ["the tables are in no collection of TorchRec, so only plans as JSON or CSV are for them"]
    others = [p for p in model.parameters() if id(p) not in placed and not nn.parameter.is_lazy(p)]
    if others:
        size = f"{sum(p.numel() * p.element_size() for p in others) / 2**20:.4g} MiB"
        notes.append(
            f"{len(others)} other parameters ({size}) are on every device, not placed; reserve memory for them"
        )
    return details, notes


def class_name(kind: type[nn.Module]) -> str:
    """Name of a class with its package, as in `ModelTable.module_class`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _sharded(
    path: str, module: nn.Module, by_type: Mapping[type, ModuleSharder[nn.Module]], *, is_derived_too: bool
) -> Iterator[tuple[str, nn.Module, ModuleSharder[nn.Module]]]:
    """Path, module and sharder of each module that a sharder shards."""
    kind, is_quantised = type(module).__name__, type(module).__module__.startswith("torchrec.quant.")
    if isinstance(module, ShardedModule) or (is_quantised and "Embedding" in kind) or kind in _REFUSED:
        raise ValueError(
            f"{path or 'the model'} is of class {kind}, which is sharded, quantised, or changes rows itself; give "
            "the model before sharding, with plain collections"
        )
    classes = type(module).__mro__ if is_derived_too else (type(module),)
    sharder = next((by_type[kind] for kind in classes if kind in by_type), None)
    if sharder is not None:
        yield path, module, sharder
        return
    for name, child in module.named_children():
        yield from _sharded(f"{path}.{name}".lstrip("."), child, by_type, is_derived_too=is_derived_too)


def _tables_in(path: str, module: nn.Module, sharder: ModuleSharder[nn.Module]) -> Iterator[ModelTable]:
    """The tables of a collection that its sharder shards."""
    kinds = EmbeddingBagCollectionInterface | EmbeddingCollectionInterface
    inner: Any = next((part for part in module.modules() if isinstance(part, kinds)), None)  # a collection may wrap one
    is_pooled = isinstance(inner, EmbeddingBagCollectionInterface)
    listed = [] if inner is None else inner.embedding_bag_configs() if is_pooled else inner.embedding_configs()
    configs = {config.name: config for config in listed}
    usual = (getattr(sharder, "fused_params", None) or {}).get("optimizer")
    if hasattr(inner, "optimizer_type"):  # of a fused collection
        usual = inner.optimizer_type()
    for name, parameter in sharder.shardable_parameters(module).items():
        if name not in configs:
            raise ValueError(
                f"table {name!r} of {path} is in a {type(module).__name__}, which gives no configs of its tables; leave its "
                "sharder out"
            )
        config: Any = configs[name]
        precision: Any = "virtual" if config.use_virtual_table else config.data_type.value
        with reading(f"table {name!r}", "cannot be planned", "change it or leave it out"):
            yield ModelTable(
                name,
                config.num_embeddings,
                config.embedding_dim,
                features=tuple(config.feature_names or [name]),
                module_path=path,
                precision=precision,
                pooling=config.pooling.value if is_pooled else "none",
                is_weighted=is_pooled and bool(inner.is_weighted()),
                optimizer=_optimizer(parameter, usual),
                module_class=class_name(type(module)),
            )


def _plain_tables(model: nn.Module) -> Iterator[ModelTable]:
    """The tables of `nn.EmbeddingBag`, `nn.Embedding` and FBGEMM's table-batched embeddings, named by their paths."""
    for path, module in model.named_modules():
        name, module_class = path or "table", class_name(type(module))
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            mode = getattr(module, "mode", "none")
            yield ModelTable(
                name,
                module.num_embeddings,
                module.embedding_dim,
                features=(name,),
                precision=_TORCH_TYPES.get(module.weight.dtype, "fp32"),
                pooling="none" if mode == "none" else "mean" if mode == "mean" else "sum",
                optimizer=_optimizer(module.weight, None),
                module_class=module_class,
            )
        elif hasattr(module, "embedding_specs") and hasattr(module, "feature_table_map"):  # several classes of FBGEMM
            batched: Any = module
            for t, (rows, dim, *_) in enumerate(batched.embedding_specs):
                yield ModelTable(
                    f"{name}.{t}",
                    rows,
                    dim,
                    features=tuple(f"{name}.feature_{f}" for f, of in enumerate(batched.feature_table_map) if of == t),
                    precision=batched.weights_precision.value,
                    pooling=batched.pooling_mode.name.lower(),
                    optimizer=_optimizer(None, getattr(batched, "optimizer", None)),
                    module_class=module_class,
                )


def _optimizer(parameter: Any, usual: Any) -> Any:
    """The optimizer fused into a table's backward pass: of its weights, else `usual`; None for none."""
    classes = getattr(parameter, "_optimizer_classes", ())  # where TorchRec itself looks
    chosen = (parameter._optimizer_kwargs[0].get("optimizer") or classes[0]) if classes else usual
    fused = optimizer_type_to_emb_opt_type(chosen) if isinstance(chosen, type) else chosen
    return fused and str(getattr(fused, "value", fused)).removeprefix("exact_").replace("row_wise", "rowwise")


def record(model: object, batches: Iterable[Any], *, num_samples: int | None = None) -> ModelTables:
    """The model with the lookups of its tables counted in batches, which together count as one.

    Args:
        model: its tables, or a source of them as for `tables_of`.
        batches: of `KeyedJaggedTensor`, or of anything that holds some: with a `sparse_features`, a tuple, a dict, an object.
        num_samples: to count from the start; reading stops once there are enough. None for all.

    Raises:
        ValueError: there are no samples, a batch lacks a feature that a table looks up, or an id is no row of its table.

    >>> batch = KeyedJaggedTensor(["user", "item"], torch.tensor([7, 7, 3]), lengths=torch.tensor([1, 1, 0, 1]))
    >>> ds.record(model, [batch]).tables.pooling_factor.tolist()
    [1.0, 0.5]
    """
    model = model if isinstance(model, ModelTables) else tables_of(model)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in model.tables.names}
    looked_up = {feature for detail in model.details for feature in detail.features}
    samples = count = 0
    for count, batch in enumerate(batches, start=1):
        features = _features(batch, f"batch {count}")
        sizes = {len(features[feature].lengths()) for feature in looked_up & features.keys()}
        if len(sizes) > 1:
            raise ValueError(
                f"batch {count} has different numbers of samples ({sorted(sizes)}); yield every feature for all samples"
            )
        for name, table in model.by_name.items():
            parts[name].append(_lookups(table, features, f"batch {count}"))
        samples += max(sizes)
        if num_samples and samples >= num_samples:
            break
    if not samples:
        raise ValueError(f"the batches hold no samples ({count} batches were read); yield at least one")
    kept = min(samples, num_samples or samples)
    lookups = {}
    for name, collected in parts.items():
        indices, lengths = (torch.cat(parts) for parts in zip(*collected, strict=True))
        lookups[name] = Lookups(indices, nn.functional.pad(lengths.cumsum(0), (1, 0))).first(kept)
    listed = tuple(with_statistics(table, lookups[table.name]) for table in model.listed)
    note = f"lookups were counted in {kept} samples of {count} batches, as one batch"
    return replace(model, listed=listed, lookup_notes=(note,), lookups=lookups)


def open_model(config: WorkloadConfig) -> Workload:
    """The model that `config.source` makes, with lookups from `config.batches`, or else Zipf lookups.

    Raises:
        ValueError: a function is missing or raises an error, its result has no tables or lookups, or the model has fewer
            tables than the config asks for.
    """
    model = tables_of(call(config.source, "there is no model"))
    if config.batches is not None:
        model = record(model, call(config.batches, "there are no batches"), num_samples=config.batch_size)
    recorded, notes = model.lookups, model.notes
    if any((detail.precision, detail.optimizer or "sgd") != ("fp32", "sgd") for detail in model.details):
        notes += ("a dataset keeps no types of weights and no optimizers: training takes the recipe's",)
    tokens = {
        name: digest(lookups.indices.numpy().tobytes() + lookups.offsets.numpy().tobytes())
        for name, lookups in recorded.items()
    }
    samples = max((lookups.batch_size for lookups in recorded.values()), default=0)
    return listed_workload(config, model.listed, lambda table, _: recorded[table.name], tokens, samples, notes)


def _lookups(table: ModelTable, features: Mapping[str, Any], where: str) -> tuple[Tensor, Tensor]:
    """`[N]` rows that a table's features look up in one batch, sample by sample, and `[B]` lookups of each sample."""
    if missing := [feature for feature in table.features if feature not in features]:
        raise ValueError(
            f"{where} has no feature {shown(missing)}, which table {table.name!r} looks up; the batch has "
            f"{shown(list(features)) or 'none'}"
        )
    parts = [features[feature] for feature in table.features]
    lengths = [part.lengths().detach().cpu().long() for part in parts]
    sample = torch.cat([torch.repeat_interleave(counts) for counts in lengths])  # [N]
    indices = torch.cat([part.values().detach().cpu().long() for part in parts])[sample.argsort(stable=True)]
    check_indices(indices, table.rows, f"{where}, {shown(table.features)} of table {table.name!r},")
    return indices.to(index_dtype(table.rows)), torch.stack(lengths).sum(dim=0)


def _features(batch: Any, where: str) -> dict[str, Any]:
    """The jagged tensor of each feature of the KeyedJaggedTensors that a batch is or holds."""
    batch = getattr(batch, "sparse_features", batch)
    fields = batch if isinstance(batch, Mapping) else getattr(batch, "__dict__", {})
    parts = batch if isinstance(batch, list | tuple) else [batch, *fields.values()]
    features: dict[str, Any] = {}
    for keyed in parts:
        if not isinstance(keyed, KeyedJaggedTensor):
            continue
        repeated = sorted(features.keys() & set(keyed.keys()))
        if repeated or keyed.variable_stride_per_key():
            problem = f"{shown(repeated)} in two KeyedJaggedTensors" if repeated else "samples taken out"
            raise ValueError(f"{where} has {problem}; yield every feature once, for all samples")
        features |= keyed.to_dict()
    if not features:
        raise ValueError(
            f"{where} is a {type(batch).__name__} without a KeyedJaggedTensor, so it says nothing of lookups; yield "
            "KeyedJaggedTensors, or batches with a `sparse_features`"
        )
    return features
