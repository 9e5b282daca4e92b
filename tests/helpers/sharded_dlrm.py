"""Ranks of a small DLRM, compared after each step with the model unsharded.

torchrun ... -m tests.helpers.sharded_dlrm MODE FOLDER
"""

import copy
import gc
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.types import ShardedTensor, ShardingEnv2D, ShardMetadata
from torchrec.models.dlrm import DLRM
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dreamshard.constraints import ANY_SHARDING
from dreamshard.placement import Placement, TableSharding
from dreamshard.plan import make_plan
from dreamshard.sharding_planner import DreamShardPlanner
from dreamshard.torchrec import load_plan, reshard_delta, tables_of

RATE, BATCH, LOOKUPS, ROWS, DIM, GROUP = 0.5, 4, 5, 20, 16, 2
ROW_WISE = TableSharding("row_wise")
COLUMNS = ((0, 8), (8, DIM))
PLANS = {
    "first": (TableSharding("table_wise", (), (1,)), TableSharding("column_wise", COLUMNS, (0, 1)), ROW_WISE),
    "moved": (TableSharding("table_wise", (), (0,)), TableSharding("column_wise", COLUMNS, (1, 0)), ROW_WISE),
}
TABLES = ("whole", "columns", "rows")
SHARDERS = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE})]
CPU = torch.device("cpu")


def make_model() -> DLRM:
    """Three tables, and small dense layers; the same weights on all ranks."""
    torch.manual_seed(0)
    tables = [EmbeddingBagConfig(name=t, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[t]) for t in TABLES]
    collection = EmbeddingBagCollection(tables=tables, device=CPU)
    return DLRM(collection, dense_in_features=3, dense_arch_layer_sizes=[DIM], over_arch_layer_sizes=[4, 1])


def run(mode: str, ranks: int, folder: Path) -> None:
    """Run the ranks of a mode; raises with what they printed."""
    task = tables_of(make_model()).task(GROUP, 2**30, constraints=ANY_SHARDING)
    for name, shardings in PLANS.items():
        (folder / f"{name}.json").write_text(make_plan(task, Placement(shardings, GROUP, GROUP), "test").to_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ran = subprocess.run(
        [*launcher, "-m", __name__, mode, str(folder)],
        env={**os.environ, "PYTHONHASHSEED": "0"},  # resharding tags messages by `hash`, which gloo compares
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert not ran.returncode, ran.stderr[-15000:]


def batch(rank: int, step: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """The samples of a rank in a step."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    lengths = torch.randint(1, 4, (len(TABLES) * BATCH,), generator=generator)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    return torch.rand(BATCH, 3, generator=generator), KeyedJaggedTensor.from_lengths_sync(list(TABLES), values, lengths)


def train_a_step(reference: DLRM, sharded: DistributedModelParallel, step: int, replicas=None) -> None:
    """Outputs before, and weights after it, are those of the reference, which trains on the samples of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    optimizers = [
        torch.optim.SGD(dict(in_backward_optimizer_filter(sharded.named_parameters())).values(), RATE),
        torch.optim.SGD(reference.parameters(), RATE),
    ]
    for optimizer in optimizers:
        optimizer.zero_grad()
    ours, theirs = sharded(*batch(rank, step)), reference(*batch(rank, step))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    ours.square().sum().backward()
    torch.stack([reference(*batch(each, step)).square().sum() for each in range(ranks)]).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    for _, part, _ in table_parts(sharded.state_dict()) if replicas else ():
        dist.all_reduce(part, group=replicas)
        part /= replicas.size()
    compare(reference, sharded)


def table_parts(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, tuple[slice, ...]]]:
    """Name, values and ranges of the shards that this rank holds."""
    for name, value in state.items():
        if isinstance(value, ShardedTensor):
            shards = [(s.tensor, s.metadata.shard_offsets, s.metadata.shard_sizes) for s in value.local_shards()]
        elif isinstance(value, DTensor):
            own = value.to_local()
            shards = zip(own.local_shards(), own.local_offsets(), own.local_sizes(), strict=False)
        else:
            shards = [(value, (0, 0), value.shape)] if "embedding" in name else []
        for part, starts, sizes in shards:
            yield name, part.detach(), tuple(slice(a, a + size) for a, size in zip(starts, sizes, strict=True))


def compare(reference: DLRM, sharded: DistributedModelParallel) -> None:
    """The tables' weights of this rank."""
    parts = list(table_parts(sharded.state_dict()))
    for name, part, ranges in parts:
        torch.testing.assert_close(part, reference.state_dict()[name][ranges], atol=1e-5, rtol=0)
    assert parts


def copy_tables(reference: DLRM, sharded: DistributedModelParallel) -> None:
    """The reference's weights, into the tables of the sharded model."""
    for name, part, ranges in table_parts(sharded.state_dict()):
        part.copy_(reference.state_dict()[name][ranges])


def reshard(folder: Path) -> None:
    """A step, the tables moved, another step."""
    reference = make_model()
    first, moved = (load_plan(folder / f"{name}.json", reference, SHARDERS) for name in PLANS)
    delta = reshard_delta(first, moved)
    sharded = DistributedModelParallel(copy.deepcopy(reference), device=CPU, plan=first, sharders=SHARDERS)
    copy_tables(reference, sharded)
    train_a_step(reference, sharded, 0)
    for module in delta:
        sharded.reshard(delta, module)
    compare(reference, sharded)
    train_a_step(reference, sharded, 1)


def groups(folder: Path) -> None:
    """Two steps under a plan file and under the planner's plan, as `DMPCollection` runs them, which refuses CPU ranks itself.

    It gives every group the plan, renumbers its ranks, and averages the replicas of a shard after each step.
    """
    ranks, model = dist.get_world_size(), make_model()
    mesh = init_device_mesh("cpu", (ranks // GROUP, GROUP), mesh_dim_names=("replicate", "shard"))
    shards, replicas = mesh.get_group("shard"), mesh.get_group("replicate")
    topology = Topology(GROUP, "cpu", local_world_size=GROUP)
    planned = DreamShardPlanner(topology, BATCH, costs="a100").collective_plan(model, SHARDERS, dist.group.WORLD)
    for plan in (load_plan(folder / "first.json", model, SHARDERS, world_size=GROUP), planned):
        for own in plan.plan["sparse_arch.embedding_bag_collection"].values():
            own.ranks = [dist.get_global_rank(shards, rank) for rank in own.ranks]
            if own.sharding_spec is not None:
                own.sharding_spec.shards = [
                    ShardMetadata(shard.shard_offsets, shard.shard_sizes, f"rank:{rank}/cpu")
                    for rank, shard in zip(own.ranks, own.sharding_spec.shards, strict=True)
                ]
        reference = make_model()
        env = ShardingEnv2D(shards, replicas, dist.group.WORLD, mesh, GROUP, use_inter_host_allreduce=True)
        sharded = DistributedModelParallel(copy.deepcopy(reference), env, CPU, plan, SHARDERS)
        copy_tables(reference, sharded)
        for step in range(2):
            train_a_step(reference, sharded, step, replicas)


def memory(folder: Path) -> None:
    """The planner logs the bytes of weights, optimizer state, lookups and vectors that this rank then holds."""
    planners, kept, rank = logging.getLogger("dreamshard.sharding_planner"), BufferingHandler(100), dist.get_rank()
    planners.setLevel(logging.INFO)
    planners.addHandler(kept)
    values = torch.arange(len(TABLES) * BATCH * LOOKUPS) % ROWS
    features = KeyedJaggedTensor(list(TABLES), values, lengths=torch.full((len(TABLES) * BATCH,), LOOKUPS))
    topology, looked_up = Topology(GROUP, "cpu", local_world_size=GROUP), {"pooling_factors": [LOOKUPS]}
    constraints = {name: ParameterConstraints(sharding_types=["table_wise"], **looked_up) for name in TABLES}
    constraints["columns"] = ParameterConstraints(sharding_types=["column_wise"], min_partition=8, **looked_up)
    for optimizer in (EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD):
        sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": optimizer})]
        plan = DreamShardPlanner(topology, BATCH, costs="a100", constraints=constraints).plan(make_model(), sharders)
        texts = [text for each in kept.buffer if (text := each.getMessage()).startswith(f"rank {rank}: ")]
        logged = [2**30 * float(size) for size in re.findall(r"(\S+) GiB of", texts[-1])]
        sharded = DistributedModelParallel(make_model(), device=CPU, plan=plan, sharders=sharders)
        states = sharded.fused_optimizer.state_dict()["state"].values()
        collection = sharded.module.sparse_arch.embedding_bag_collection
        context = collection.create_context()
        inputs = collection.input_dist(context, features).wait().wait()
        outputs = collection.compute_and_output_dist(context, inputs).wait()
        held = [
            sum(part.nbytes for _, part, _ in table_parts(sharded.state_dict())),
            sum(part.nbytes for state in states for _, part, _ in table_parts(state)),
            sum(part.values().nbytes for part in inputs)
            + 4 * BATCH * GROUP * sum(part.shape[1] for _, part, _ in table_parts(sharded.state_dict())),
            2 * outputs.values().nbytes,  # with the gradient
        ]
        assert logged == pytest.approx(held, rel=0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    {"reshard": reshard, "groups": groups, "memory": memory}[sys.argv[1]](Path(sys.argv[2]))
    dist.barrier()
    gc.collect()  # a model still alive keeps gloo's threads running while Python ends, and then they may abort the process
    dist.destroy_process_group()
