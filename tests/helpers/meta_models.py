"""Models of TorchRec by hand, without weights."""

from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig

META = torch.device("meta")


def bag(name: str, rows: int = 100, dim: int = 16, features: list[str] | None = None, **options: Any):
    """A pooled table, of a feature of its own name without `features`."""
    return EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features or [name], **options
    )


def bags(*tables: EmbeddingBagConfig, **options: Any) -> EmbeddingBagCollection:
    """A collection of pooled tables."""
    return EmbeddingBagCollection(device=META, tables=list(tables), **options)


def sequences(name: str, rows: int = 100, dim: int = 16, **options: Any) -> EmbeddingCollection:
    """A collection of one table without pooling."""
    table = EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name], **options)
    return EmbeddingCollection(device=META, tables=[table])
