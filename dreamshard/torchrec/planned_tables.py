"""The tables of a model that TorchRec's sharders shard: what a sharding plan names, and what a plan file is checked by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

_DATA_TYPES = {
    torch.float32: "FP32",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.int8: "INT8",
    torch.uint8: "INT8",
}


@dataclass(frozen=True, kw_only=True, order=True)
class PlannedTable:
    """A table of a model, as TorchRec's plans name it.

    Attributes:
        module_path: of its collection within the model; empty where the model is the collection.
        name: unique within the collection.
        rows: hash size.
        dim: embedding dimension, not rounded up.
        data_type: of the weights, a name of TorchRec's `DataType`.
        is_sequence: whether its vectors are not pooled; of no account where tables are compared.
    """

    module_path: str
    name: str
    rows: int
    dim: int
    data_type: str = "FP32"
    is_sequence: bool = field(default=False, compare=False)

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name


@dataclass(frozen=True)
class ShardableTable:
    """A table of a model together with what shards it.

    Attributes:
        table: as a plan names it.
        parameter: its weights, perhaps on the `meta` device.
        module: its collection.
        sharder: that shards the collection.
        config: of TorchRec, such as `EmbeddingBagConfig`; None where the collection has none.
    """

    table: PlannedTable
    parameter: nn.Parameter
    module: nn.Module
    sharder: ModuleSharder[nn.Module]
    config: Any


def planned_tables(model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> list[PlannedTable]:
    """The tables of a model that `sharders` shard; by default TorchRec's own sharders."""
    return [each.table for each in shardable_tables(model, sharders or get_default_sharders())]


def shardable_tables(model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> list[ShardableTable]:
    """The tables of a model that `sharders` shard, in the order of its modules."""
    by_type = {sharder.module_type: sharder for sharder in sharders}
    return list(_shardable("", model, by_type))


def _shardable(
    path: str, module: nn.Module, by_type: dict[type[nn.Module], ModuleSharder[nn.Module]]
) -> Iterator[ShardableTable]:
    sharder = by_type.get(type(module))
    if sharder is None:
        for name, child in module.named_children():
            yield from _shardable(f"{path}.{name}" if path else name, child, by_type)
        return
    configs = {config.name: config for config in _configs(module)}
    for name, parameter in sharder.shardable_parameters(module).items():
        rows, dim = parameter.shape
        config = configs.get(name)
        data_type = config.data_type.value if config is not None else _DATA_TYPES.get(parameter.dtype, "")
        table = PlannedTable(
            module_path=path,
            name=name,
            rows=rows,
            dim=dim,
            data_type=data_type or str(parameter.dtype),
            is_sequence=config is not None and not hasattr(config, "pooling"),
        )
        yield ShardableTable(table, parameter, module, sharder, config)


def _configs(module: nn.Module) -> list[Any]:
    """TorchRec's configurations of a collection's tables, also where another module wraps the collection."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        if hasattr(module, method):
            return list(getattr(module, method)())
    for wrapped in ("_embedding_bag_collection", "_embedding_module"):
        if hasattr(module, wrapped):
            return _configs(getattr(module, wrapped))
    return []
