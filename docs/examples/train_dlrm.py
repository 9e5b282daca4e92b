"""Train a small DLRM for 20 steps, its tables sharded by dreamshard: by a plan file, or by the planner in TorchRec's place.

    dreamshard place docs/examples/train_dlrm.py:make_model --devices 2 --hardware a100 --device-type cpu \
        --format torchrec --out plan.json
    torchrun --nproc-per-node 2 docs/examples/train_dlrm.py --plan plan.json
    torchrun --nproc-per-node 2 docs/examples/train_dlrm.py --costs a100

Runs on GPUs with NCCL where there are enough, else on CPU ranks with gloo. Batches are random; the label follows from them.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.optimizers import in_backward_optimizer_filter

import dreamshard as ds

STEPS, BATCH, DENSE, DIM, RATE = 20, 256, 13, 32, 0.5
ROWS = {"user": 200_000, "item": 50_000, "shop": 5_000, "city": 400, "hour": 24}


def make_model() -> DLRMTrain:
    """The model; its tables take no memory before they are sharded."""
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=[f"{name}_id"])
        for name, rows in ROWS.items()
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    return DLRMTrain(
        DLRM(
            embedding_bag_collection=collection,
            dense_in_features=DENSE,
            dense_arch_layer_sizes=[64, DIM],
            over_arch_layer_sizes=[64, 1],
        )
    )


class Batch:
    """Random samples of one rank."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        lengths = torch.randint(1, 4, (len(ROWS) * BATCH,), generator=generator)
        counts = lengths.reshape(len(ROWS), BATCH).sum(dim=1).tolist()
        ids = [
            torch.randint(rows, (count,), generator=generator)
            for rows, count in zip(ROWS.values(), counts, strict=True)
        ]
        keys = [f"{name}_id" for name in ROWS]
        self.dense_features = torch.randn(BATCH, DENSE, generator=generator).to(device)
        self.sparse_features = KeyedJaggedTensor.from_lengths_sync(keys, torch.cat(ids), lengths).to(device)
        self.labels = (self.dense_features[:, 0] > 0).int()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Print where the tables are, then the loss of every fifth step."""
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same dense weights on all ranks
    model = make_model()
    sharders = [
        EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE})
    ]
    if options.plan:
        plan = ds.load_plan(options.plan, model, sharders)
    else:
        plan = ds.DreamShardPlanner(batch_size=BATCH, costs=options.costs).collective_plan(model, sharders)
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders)
    if rank == 0:
        for path, tables in plan.plan.items():
            for name, table in tables.items():
                print(f"{path}.{name}: {table.sharding_type} on ranks {table.ranks}")

    dense = torch.optim.SGD(dict(in_backward_optimizer_filter(sharded.named_parameters())).values(), RATE)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        dense.zero_grad()
        loss, _ = sharded(Batch(generator, device))
        loss.backward()  # tables are updated here, by the fused optimizer
        dense.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


def main() -> None:
    """Train as one rank of those that torchrun started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--plan", help="what `dreamshard place --format torchrec` wrote")
    how.add_argument("--costs", help="a preset, a hardware file, a placer's folder, `champion` or a version")
    options = parser.parse_args()

    on_gpu = torch.cuda.device_count() > 1
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    train(options, device)
    # A model still alive keeps gloo's threads running while Python ends, and then they may abort the process.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
