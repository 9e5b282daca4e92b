"""TorchRec's embedding configs as tables of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from typing import Any

import torch
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, DataType, PoolingType

from dreamshard.model_tables import ModelTable, Pooling, shown
from dreamshard.tables import Optimizer, Precision

_PRECISIONS: dict[DataType, Precision] = {
    DataType.FP32: "fp32",
    DataType.FP16: "fp16",
    DataType.BF16: "bf16",
    DataType.INT8: "int8",
}
_POOLINGS: dict[PoolingType, Pooling] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.NONE: "none"}
_USED = frozenset({"num_embeddings", "embedding_dim", "name", "data_type", "feature_names", "pooling"})


def table_of(
    config: BaseEmbeddingConfig,
    *,
    module_path: str = "",
    is_weighted: bool = False,
    optimizer: Optimizer | None = None,
    collection: str = "",
) -> ModelTable:
    """The table of one `EmbeddingBagConfig` or `EmbeddingConfig`; the other arguments as in `ModelTable`.

    Raises:
        ValueError: the table has no name or no room, or a type of weights that cannot be planned.
    """
    where = f"table {config.name!r}" + (f" of {module_path}" if module_path else "")
    if not config.name:
        raise ValueError(f"a {type(config).__name__} has no name, so a plan cannot name its table; give it one")
    if config.num_embeddings < 1 or config.embedding_dim < 1:
        raise ValueError(
            f"{where} has {config.num_embeddings} rows and {config.embedding_dim} columns, so it holds nothing; give it "
            "at least one of each"
        )
    if config.data_type not in _PRECISIONS:
        raise ValueError(
            f"{where} has weights of {config.data_type}, for which no costs are known; use one of "
            f"{', '.join(map(str, _PRECISIONS))}"
        )
    if config.use_virtual_table:
        raise ValueError(
            f"{where} is a virtual table, which takes memory as ids come, so its size is unknown before training; leave "
            "use_virtual_table out, or place it by itself"
        )
    pooling = getattr(config, "pooling", PoolingType.NONE)  # EmbeddingConfig has none: it is of a sequence
    return ModelTable(
        name=config.name,
        rows=config.num_embeddings,
        dim=config.embedding_dim,
        features=tuple(config.feature_names or [config.name]),
        module_path=module_path,
        precision=_PRECISIONS[config.data_type],
        pooling=_POOLINGS[pooling],
        is_weighted=is_weighted,
        optimizer=optimizer,
        collection=collection,
    )


def unused_settings(configs: Sequence[BaseEmbeddingConfig]) -> list[str]:
    """A note for each setting of the configs that planning does not use and that is not the default."""
    tables: dict[str, list[str]] = {}
    for config in configs:
        for field in fields(config):
            if field.name not in _USED and not _is_default(config, field):
                tables.setdefault(field.name, []).append(config.name)
    return [f"{name} of {shown(names)} is not used in planning" for name, names in tables.items()]


def _is_default(config: BaseEmbeddingConfig, field: "Field[Any]") -> bool:
    value = getattr(config, field.name)
    if field.name == "init_fn":
        return _is_uniform(value, {"a": config.get_weight_init_min(), "b": config.get_weight_init_max()})
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def _is_uniform(init: Callable[..., Any] | None, bounds: Mapping[str, float]) -> bool:
    """Whether it is the initialisation that TorchRec puts where a config has none."""
    return init is None or (
        isinstance(init, partial) and init.func is torch.nn.init.uniform_ and dict(init.keywords) == dict(bounds)
    )
