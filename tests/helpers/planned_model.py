"""A TorchRec model without weights, and `DreamShardPlanner` on it."""

import torch
import torchrec
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.types import DataType

from dreamshard.constraints import Constraints
from dreamshard.sharding_planner import DreamShardPlanner

SHARDERS = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
GIB = 2**30


class Model(torch.nn.Module):
    """Four pooled tables, one of which two features share, and a sequence."""

    def __init__(self, rows: int = 1_000_000, dim: int = 64, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        config = torchrec.EmbeddingBagConfig
        features = {"a": ["a"], "b": ["b"], "c": ["c", "c2"], "d": ["d"]}
        self.ebc = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                config(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=keys, data_type=data_type)
                for name, keys in features.items()
            ],
        )
        sequence = torchrec.EmbeddingConfig(name="s", num_embeddings=1000, embedding_dim=8, feature_names=["s"])
        self.ec = torchrec.EmbeddingCollection(device=torch.device("meta"), tables=[sequence])
        self.over = torch.nn.Linear(64, 1, device="meta")


def topology(
    ranks: int = 4, *, per_host: int = 2, memory: int = 40 * GIB, device: str = "cuda", ddr: int | None = None
):
    return Topology(world_size=ranks, local_world_size=per_host, compute_device=device, hbm_cap=memory, ddr_cap=ddr)


def planner(costs="a100", **options) -> DreamShardPlanner:
    options = {"topology": topology(), "batch_size": 1024, **options}
    return DreamShardPlanner(costs=costs, **options)


def constrained(constraint: ParameterConstraints, table: str = "a", model=None, device: str = "cuda", own=None):
    """What a constraint, and dreamshard's own, mean for planning."""
    model = model or Model()
    found = planner(
        topology=topology(device=device), constraints={table: constraint}, placement_constraints=own or Constraints()
    )
    return found.task(found.model(model, SHARDERS), model, SHARDERS).constraints
