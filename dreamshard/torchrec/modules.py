"""The embedding tables of any model: finds TorchRec's collections in it, and names what it does not plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torchrec.distributed.sharding_plan import get_module_to_default_sharders
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from dreamshard.model_tables import ModelTable, ModelTables, model_tables, read_configs, shown
from dreamshard.tables import Optimizer, Tables
from dreamshard.torchrec import optimizers
from dreamshard.torchrec.configs import table_of, unused_settings
from dreamshard.torchrec.ways import class_name

_REFUSED = {
    "ITEPEmbeddingBagCollection": "prunes rows while it trains",
    "ITEPEmbeddingCollection": "prunes rows while it trains",
    "PECEmbeddingCollection": "exchanges rows by a scheme of its own",
    "DebugEmbeddingBagCollection": "is for debugging",
    "DebugEmbeddingCollection": "is for debugging",
}
"""By the class's name: importing all of them would take seconds."""

Configs = Sequence[BaseEmbeddingConfig]


@dataclass
class _Collection:
    """A collection of tables, and the module around it that TorchRec shards as a whole, if any."""

    path: str
    module: nn.Module
    inner: Any  # torchrec is untyped here

    @property
    def configs(self) -> Configs:
        is_pooled = isinstance(self.inner, EmbeddingBagCollectionInterface)
        return list(self.inner.embedding_bag_configs() if is_pooled else self.inner.embedding_configs())

    @property
    def is_weighted(self) -> bool:
        return isinstance(self.inner, EmbeddingBagCollectionInterface) and bool(self.inner.is_weighted())

    @property
    def shown(self) -> str:
        return f"{type(self.module).__name__} {self.path or 'given'}"


@dataclass
class _Found:
    """What a walk through a model came upon."""

    collections: list[_Collection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)


def tables_of(
    source: object,
    pooling_factors: Mapping[str, float] | None = None,
    *,
    fused_params: Mapping[str, Any] | None = None,
    defaults: Tables | None = None,
) -> ModelTables:
    """The tables of a model, and notes on all of it that planning does not use.

    Args:
        source: a model with any number of `EmbeddingBagCollection` and `EmbeddingCollection` modules, which takes no memory
            on the `meta` device; or a list of their configs; or a JSON file of configs.
        pooling_factors: mean lookups per sample, by name of a table or of a feature; by default 1 per feature.
        fused_params: as given to TorchRec's sharders; their optimizer is that of tables without one of their own.
        defaults: pool whose mean reuse fills in how often rows are looked up again; None for a Zipf law's expectation.

    Raises:
        ValueError: the model has no tables, or something that cannot be planned, which the message names.
    """
    if isinstance(source, str | Path):
        return read_configs(source, pooling_factors, defaults)
    general, settings = optimizers.of_fused_params(fused_params)
    if isinstance(source, nn.Module):
        found = _walk(source)
        configs = [config for collection in found.collections for config in collection.configs]
        details, used = _tables_in(found.collections, general)
        notes, settings = [*found.notes, *_dense_notes(source, found)], settings | used
    else:
        configs = _checked(source)
        details, notes = [table_of(config, optimizer=general) for config in configs], []
    if not details:
        raise ValueError(
            f"{type(source).__name__} has no EmbeddingBagCollection or EmbeddingCollection, so there are no tables to place; "
            f"give the model that holds them{': ' + notes[0] if notes else ''}"
        )
    notes += unused_settings(configs)
    if settings:
        notes.append(f"settings of optimizers and operators are not used: {', '.join(sorted(settings))}")
    if all(detail.optimizer is None for detail in details):
        notes.append("no optimizer is fused into the backward pass, where TorchRec runs SGD, which has no state")
    return model_tables(details, pooling_factors=pooling_factors, defaults=defaults, notes=notes)


def _checked(source: object) -> list[BaseEmbeddingConfig]:
    configs = list(source) if isinstance(source, Sequence) else [source]
    for config in configs:
        if not isinstance(config, BaseEmbeddingConfig):
            raise ValueError(
                f"an object of type {type(config).__name__} is neither a torch.nn.Module nor an EmbeddingBagConfig "
                "or EmbeddingConfig, so it has no tables; give a model, or a list of configs"
            )
    return configs


def _tables_in(
    collections: Sequence[_Collection], general: Optimizer | None
) -> tuple[list[ModelTable], frozenset[str]]:
    """The tables of all collections, and the names of settings of their optimizers."""
    details: list[ModelTable] = []
    settings: frozenset[str] = frozenset()
    for collection in collections:
        parameters = {name.split(".")[-2]: each for name, each in collection.inner.named_parameters() if "." in name}
        fused = getattr(collection.inner, "optimizer_type", None)  # of FusedEmbeddingBagCollection and the like
        for config in collection.configs:
            if fused is not None:
                own: Optimizer | None = optimizers.of_class(fused(), config.name)
                used = frozenset(collection.inner.optimizer_kwargs())
            else:
                own, used = optimizers.of_parameter(parameters.get(config.name), config.name)
            settings |= used
            details.append(
                table_of(
                    config,
                    module_path=collection.path,
                    is_weighted=collection.is_weighted,
                    optimizer=own or general,
                    collection=class_name(type(collection.module)),
                )
            )
    return details, settings


def _walk(model: nn.Module) -> _Found:
    found = _Found()
    _visit("", model, found)
    default = get_module_to_default_sharders()
    unsharded = [each.shown for each in found.collections if type(each.module) not in default]
    if unsharded:
        found.notes.append(
            f"TorchRec's default sharders do not shard {shown(unsharded)}; give the trainer one that does"
        )
    return found


def _visit(path: str, module: nn.Module, found: _Found) -> None:
    """Add what is in a module, each only where it is found first."""
    kind = type(module).__name__
    if id(module) in found.seen:
        found.notes.append(f"{path} is the same module as {found.seen[id(module)]}, so its tables are placed once")
        return
    _refuse(path, module)
    inner: Any = None
    if isinstance(module, FeatureProcessedEmbeddingBagCollection):
        inner = module._embedding_bag_collection
        found.notes.append(f"the feature processors of {path or kind} are not planned; they are on every device")
    elif isinstance(module, BaseManagedCollisionEmbeddingCollection):
        inner = module._embedding_module
        found.notes.append(f"{kind} {path} remaps ids before lookups; batches are counted as they are, without that")
    elif isinstance(module, EmbeddingBagCollectionInterface | EmbeddingCollectionInterface):
        inner = module
    if inner is not None:
        found.seen[id(module)] = path
        found.collections.append(_Collection(path, module, inner))
        if isinstance(inner, EmbeddingCollectionInterface) and inner.need_indices():
            found.notes.append(f"need_indices of {path or kind} is not used in planning")
        return
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        found.seen[id(module)] = path
        size = f"{module.num_embeddings} x {module.embedding_dim}"
        found.notes.append(f"{kind} {path} ({size}) is in no collection of TorchRec, so it stays on every device")
        return
    if isinstance(module, EmbeddingTower | EmbeddingTowerCollection):
        found.notes.append(
            f"the tables of {kind} {path} are placed one by one; TorchRec's tower sharders would keep them on one host"
        )
    for name, child in module._modules.items():  # named_children leaves out what is there twice
        if child is not None:
            _visit(f"{path}.{name}" if path else name, child, found)


def _refuse(path: str, module: nn.Module) -> None:
    kind, where = type(module).__name__, path or "the model"
    if isinstance(module, ShardedModule):
        raise ValueError(
            f"{where} is a {kind}, which is sharded already, so its tables are in pieces; give the model from before "
            "DistributedModelParallel"
        )
    if type(module).__module__.startswith("torchrec.quant") and hasattr(module, "forward") and "Embedding" in kind:
        raise ValueError(
            f"{where} is a {kind}, which is quantised for inference, but costs are those of training; give the model "
            "that is trained"
        )
    if kind in _REFUSED and type(module).__module__.startswith("torchrec."):
        raise ValueError(
            f"{where} is an {kind}, which {_REFUSED[kind]}, so no costs are known for it; use an EmbeddingBagCollection or "
            "EmbeddingCollection"
        )


def _dense_notes(model: nn.Module, found: _Found) -> Iterator[str]:
    """What else takes room on every device."""
    placed = {id(parameter) for each in found.collections for parameter in each.inner.parameters()}
    others = [p for p in model.parameters() if id(p) not in placed]
    known = [p for p in others if not nn.parameter.is_lazy(p)]
    if known:
        size = f"{sum(p.numel() * p.element_size() for p in known) / 2**20:.4g} MiB"
        yield f"{len(known)} other parameters ({size}) are on every device and not placed; keep room for them"
    if len(others) > len(known):
        yield f"{len(others) - len(known)} lazy parameters have no size before the first batch, so their room is not known"
