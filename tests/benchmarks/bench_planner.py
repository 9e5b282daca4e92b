"""Time of `DreamShardPlanner.collective_plan`, every way to shard allowed, beside TorchRec's planner on the same model."""

import logging
import time
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

from dreamshard.sharding_planner import DreamShardPlanner
from tests.benchmarks.measuring import Row, cpu_seconds, row

BAR_S = 2.0
SIZES = ((26, 8), (100, 8), (500, 64))
REFERENCE_UP_TO = 100
"""Tables; TorchRec's planner takes a minute for as many."""
SHARDERS = [EmbeddingBagCollectionSharder()]


def model(num_tables: int) -> EmbeddingBagCollection:
    """Tables of 1,000 to 10 million rows, on the `meta` device."""
    generator = torch.Generator().manual_seed(0)
    rows = (10 ** (torch.rand(num_tables, generator=generator) * 4 + 3)).long().tolist()
    dims = torch.tensor([16, 32, 64, 128])[torch.randint(4, (num_tables,), generator=generator)].tolist()
    configs = [
        EmbeddingBagConfig(name=f"t{t}", num_embeddings=rows[t], embedding_dim=dims[t], feature_names=[f"f{t}"])
        for t in range(num_tables)
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def rows(quick: bool = False) -> Iterator[Row]:
    """CPU seconds of ours, and of TorchRec's as reference; on a process group of one rank, which plans for all."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for tables, ranks in SIZES[: 1 if quick else None]:
        collection = model(tables)
        topology = Topology(world_size=ranks, local_world_size=8, compute_device="cuda", hbm_cap=70 * 2**30)

        def plan(collection=collection, topology=topology) -> None:
            DreamShardPlanner(topology, batch_size=1024, costs="a100").collective_plan(collection, SHARDERS)

        seconds, beside = cpu_seconds(plan, 1 if quick else 3)
        if tables > REFERENCE_UP_TO:
            yield row(f"collective_plan {tables}x{ranks} {beside}", seconds, "s CPU", BAR_S)
            continue
        began = time.process_time()
        theirs = EmbeddingShardingPlanner(topology=topology, batch_size=1024, stats=[], debug=False)
        theirs.collective_plan(collection, SHARDERS)
        reference = time.process_time() - began
        yield row(f"collective_plan {tables}x{ranks} {beside}", seconds, "s CPU", BAR_S, reference)
    dist.destroy_process_group()
