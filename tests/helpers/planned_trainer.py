"""A trainer on gloo ranks: a model with the tables of a list, which trains a step under the model's current plan."""

import pandas as pd
import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from dreamshard.torchrec import load_plan
from tests.helpers.meta_models import bag, bags
from tests.helpers.sharded_dlrm import BATCH, CPU, SHARDERS, copy_tables, table_parts, train_a_step


class Listed(torch.nn.Module):
    """A TorchRec model with the tables of a list, on the meta device."""

    def __init__(self, path: str):
        super().__init__()
        self.bags = bags(*(bag(t.name, t.rows, t.dim) for t in pd.read_csv(path).itertuples(index=False)))

    def forward(self, batch: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
        """The pooled vectors of each table."""
        return self.bags(batch).to_dict()


def train(address: str, path: str) -> None:
    """Load the plan on each rank, which then holds the planned shards, and train as the model does unsharded."""
    torch.manual_seed(0)
    model, reference = Listed(path), Listed(path).to_empty(device=CPU)
    for weights in reference.parameters():
        torch.nn.init.uniform_(weights)
    plan = load_plan(address, model, SHARDERS)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=SHARDERS)
    held = {name.split(".")[-2] for name, _, _ in table_parts(sharded.state_dict())}
    assert held == {name for name, table in plan.plan["bags"].items() if dist.get_rank() in table.ranks}
    copy_tables(reference, sharded)

    def batch(rank: int) -> tuple[KeyedJaggedTensor]:
        names = [*plan.plan["bags"]]
        ids = torch.arange(len(names) * BATCH) + rank
        return (KeyedJaggedTensor.from_lengths_sync(names, ids, torch.ones_like(ids, dtype=torch.int32)),)

    train_a_step(reference, sharded, batch, lambda vectors: sum(vector.square().sum() for vector in vectors.values()))
