"""A small DLRM on ranks, compared after each step with the model unsharded."""

import copy
import logging
import re
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.distributed.device_mesh import init_device_mesh
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv2D, ShardMetadata
from torchrec.models.dlrm import DLRM

from dreamshard.constraints import ANY_SHARDING
from dreamshard.placement import Placement, TableSharding
from dreamshard.plan import make_plan
from dreamshard.sharding_planner import DreamShardPlanner
from dreamshard.torchrec import load_plan, reshard_delta, tables_of
from tests.helpers.gloo_ranks import RATE, compare_tables, copy_tables, failures_of, table_parts, train_a_step
from tests.helpers.ports import free_port

BATCH, LOOKUPS, ROWS, DIM, GROUP = 4, 5, 20, 16, 2
ROW_WISE = TableSharding("row_wise")
COLUMNS = ((0, 8), (8, DIM))
PLANS = {
    "first": (TableSharding("table_wise", (), (1,)), TableSharding("column_wise", COLUMNS, (0, 1)), ROW_WISE),
    "moved": (TableSharding("table_wise", (), (0,)), TableSharding("column_wise", COLUMNS, (1, 0)), ROW_WISE),
}
TABLES = ("whole", "columns", "rows")
SHARDERS = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE})]
CPU = torch.device("cpu")


class Model(DLRM):
    """Its outputs have a name."""

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
        """The logits."""
        return {"logits": super().forward(dense, sparse)}


def make_model() -> Model:
    """Three tables, and small dense layers; the same weights on all ranks."""
    torch.manual_seed(0)
    tables = [EmbeddingBagConfig(name=t, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[t]) for t in TABLES]
    collection = EmbeddingBagCollection(tables=tables, device=CPU)
    return Model(collection, dense_in_features=3, dense_arch_layer_sizes=[DIM], over_arch_layer_sizes=[4, 1])


def run(mode: str, ranks: int, folder: Path) -> None:
    """Run the ranks of a mode; raises with what they printed."""
    task = tables_of(make_model()).task(GROUP, 2**30, constraints=ANY_SHARDING)
    for name, shardings in PLANS.items():
        (folder / f"{name}.json").write_text(make_plan(task, Placement(shardings, GROUP, GROUP), "test").to_json())
    found = failures_of(
        {"reshard": reshard, "groups": groups, "memory": memory}[mode], ranks, ranks, free_port(), folder
    )
    assert not found, "\n".join(found)


def batch(rank: int, step: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """The samples of a rank in a step."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    lengths = torch.randint(1, 4, (len(TABLES) * BATCH,), generator=generator)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    return torch.rand(BATCH, 3, generator=generator), KeyedJaggedTensor.from_lengths_sync(list(TABLES), values, lengths)


def step(reference: Model, sharded: DistributedModelParallel, number: int, replicas=None) -> None:
    """Train on the samples of a step, and compare."""
    train_a_step(
        reference, sharded, lambda rank: batch(rank, number), lambda out: out["logits"].square().sum(), replicas
    )


def reshard(folder: Path) -> None:
    """A step, the tables moved, another step."""
    reference = make_model()
    first, moved = (load_plan(folder / f"{name}.json", reference, SHARDERS) for name in PLANS)
    delta = reshard_delta(first, moved)
    sharded = DistributedModelParallel(copy.deepcopy(reference), device=CPU, plan=first, sharders=SHARDERS)
    copy_tables(reference, sharded)
    step(reference, sharded, 0)
    for module in delta:
        sharded.reshard(delta, module)
    compare_tables(reference, sharded)
    step(reference, sharded, 1)


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
        for number in range(2):
            step(reference, sharded, number, replicas)


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
