"""Ranks of a gloo group that share one import of TorchRec, and a small DLRM on them, compared with the model unsharded."""

import copy
import ctypes
import gc
import logging
import os
import resource
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.distributed.device_mesh import init_device_mesh
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.types import ShardedTensor, ShardingEnv2D, ShardMetadata
from torchrec.models.dlrm import DLRM
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dreamshard.constraints import ANY_SHARDING
from dreamshard.planning import make_plan
from dreamshard.tables import Placement, TableSharding
from dreamshard.tasks import Shards
from dreamshard.torchrec import load_plan, reshard_delta, sharding_options, tables_of
from dreamshard.torchrec.planner import DreamShardPlanner
from tests.helpers.meta_models import bag, bags
from tests.helpers.ports import free_port

RATE, BATCH, ROWS, DIM, GROUP = 0.5, 4, 20, 16, 2
ROW_WISE = TableSharding("row_wise")
COLUMNS = ((0, 8), (8, DIM))
PLANS = {
    "first": (TableSharding("table_wise", (), (1,)), TableSharding("column_wise", COLUMNS, (0, 1)), ROW_WISE),
    "moved": (TableSharding("table_wise", (), (0,)), TableSharding("column_wise", COLUMNS, (1, 0)), ROW_WISE),
}
TABLES = ("whole", "columns", "rows")
FIRST, LAST = TableSharding("table_wise", (), (0,)), TableSharding("table_wise", (), (1,))
HALVES, COPIES = TableSharding("column_wise", ((0, 64), (64, 128)), (0, 1)), TableSharding("data_parallel")
PEAKS = {
    "whole": (EmbOptimType.EXACT_SGD, (FIRST, FIRST, LAST, LAST)),
    "columns": (EmbOptimType.EXACT_ADAGRAD, (HALVES,) * 4),
    "rows": (EmbOptimType.EXACT_SGD, (ROW_WISE,) * 4),
    "copies": (EmbOptimType.EXACT_SGD, (COPIES,) * 4),
    "of all types": (EmbOptimType.EXACT_ROWWISE_ADAGRAD, (FIRST, HALVES, ROW_WISE, COPIES)),
}
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
    job = {"reshard": reshard, "groups": groups, "memory": memory}[mode]
    failed = failures_of(job, ranks, ranks, free_port(), folder)
    assert not failed, "\n".join(failed)


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
        for sharding in plan.plan["sparse_arch.embedding_bag_collection"].values():
            sharding.ranks = [dist.get_global_rank(shards, rank) for rank in sharding.ranks]
            if sharding.sharding_spec is not None:
                sharding.sharding_spec.shards = [
                    ShardMetadata(shard.shard_offsets, shard.shard_sizes, f"rank:{rank}/cpu")
                    for rank, shard in zip(sharding.ranks, sharding.sharding_spec.shards, strict=True)
                ]
        reference = make_model()
        env = ShardingEnv2D(shards, replicas, dist.group.WORLD, mesh, GROUP, use_inter_host_allreduce=True)
        sharded = DistributedModelParallel(copy.deepcopy(reference), env, CPU, plan, SHARDERS)
        copy_tables(reference, sharded)
        for number in range(2):
            step(reference, sharded, number, replicas)


def memory(_: Path) -> None:
    """A step's peak of memory is the bytes that the planner counts, to 10 %, and for rows a copy that gloo makes, not NCCL.

    A rank that makes fewer vectors than it gets has three times its own at its peak, not twice and those that it makes.
    """
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD: freed tensors go back to the system at once
    peak_bytes(*PEAKS["rows"])  # loads modules, which take memory too
    for name, (optimizer, shardings) in PEAKS.items():
        counted, measured = peak_bytes(optimizer, shardings)
        assert measured == pytest.approx(counted, rel=0.1), f"{name}: {measured / counted:.3f} of {counted:,} bytes"


def peak_bytes(optimizer: EmbOptimType, shardings: tuple[TableSharding, ...]) -> tuple[int, int]:
    """Bytes of this rank for four tables: as they are counted, and as steps but the first take them at most."""
    batch, lookups, placement = 16_384, 4, Placement(shardings, GROUP, GROUP)
    model = bags(*(bag(name, rows=80_000, dim=128) for name in "abcd"))
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": optimizer, "learning_rate": RATE})]
    looked_up = {name: ParameterConstraints(pooling_factors=[lookups]) for name in "abcd"}
    topology = Topology(GROUP, "cpu", local_world_size=GROUP)
    planner = DreamShardPlanner(topology, batch, costs="a100", constraints=looked_up)
    read = planner.model(model, sharders)
    task = planner.task(read, model, sharders)
    shards = Shards.of(task, placement).on(dist.get_rank())
    by_gloo = shards.activation_bytes[shards.is_any("row_wise")].sum() * (1 - 1 / GROUP)
    plan = to_sharding_plan(sharding_options(placement, read.details, model, looked_up, batch), topology)
    values, lengths = torch.randint(80_000, (4 * batch * lookups,)), torch.full((4 * batch,), lookups)
    sparse = KeyedJaggedTensor(list("abcd"), values, lengths=lengths)
    before = _resident_bytes()
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
    for state in sharded.fused_optimizer.state_dict()["state"].values():
        for _, part, _ in table_parts(state):
            part.zero_()  # so that the system gives it memory
    peaks = list[int]()
    for _ in range(6):
        _resident_bytes()
        (2 * sharded(sparse).values()).sum().backward()
        peaks.append(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return int(shards.device_bytes.sum() + by_gloo) + task.received_bytes, max(peaks[1:])


def _resident_bytes() -> int:
    """Memory of this process, without what is free; its peak so far is forgotten."""
    gc.collect()  # TorchRec's requests refer to each other
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


Outputs = dict[str, torch.Tensor]


def failures_of(job: Callable[..., None], ranks: int, per_host: int, port: int, *given: Any) -> list[str]:
    """Run `job(*given)` on each rank of a group; returns the tracebacks of those that fail."""
    context = get_context("forkserver")
    context.set_forkserver_preload([job.__module__])
    queue = context.Queue()
    arguments = (job, ranks, per_host, port, given, queue)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        return [failure for _ in processes if (failure := queue.get(timeout=300))]
    finally:
        for process in processes:
            process.join(10)
            process.kill()


def _rank(rank: int, job: Callable[..., None], ranks: int, per_host: int, port: int, given: Any, queue: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"LOCAL_RANK": str(rank % per_host), "LOCAL_WORLD_SIZE": str(per_host)}
    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        job(*given)
        dist.barrier()
        gc.collect()  # a model still alive keeps gloo's threads running while Python ends
        dist.destroy_process_group()
        queue.put("")
    except Exception:  # noqa: BLE001  # handed to the test
        queue.put(traceback.format_exc())


def table_parts(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, tuple[slice, ...]]]:
    """Name, values and ranges of the shards that this rank holds."""
    for name, value in state.items():
        if isinstance(value, ShardedTensor):
            shards = [(s.tensor, s.metadata.shard_offsets, s.metadata.shard_sizes) for s in value.local_shards()]
        elif hasattr(value, "to_local"):
            local = value.to_local()
            shards = zip(local.local_shards(), local.local_offsets(), local.local_sizes(), strict=False)
        else:
            shards = [(value, (0, 0), value.shape)] if "embedding" in name else []
        for part, starts, sizes in shards:
            yield name, part.detach(), tuple(slice(a, a + size) for a, size in zip(starts, sizes, strict=True))


def copy_tables(reference: torch.nn.Module, sharded: DistributedModelParallel) -> None:
    """The reference's weights, into the tables of the sharded model."""
    for name, part, ranges in table_parts(sharded.state_dict()):
        part.copy_(reference.state_dict()[name][ranges])


def compare(ours: Outputs, theirs: Outputs, tolerance: Callable[[str], float] = lambda _: 1e-5) -> None:
    """Values of the same names; raises AssertionError with the name."""
    assert ours.keys() <= theirs.keys()
    for name, value in ours.items():
        close = {"atol": tolerance(name), "rtol": 0, "msg": f"{name} differs"}
        torch.testing.assert_close(value.float(), theirs[name].float(), **close)


def compare_tables(reference: torch.nn.Module, sharded: DistributedModelParallel, **options: Any) -> None:
    """The tables' weights of this rank."""
    parts, state = list(table_parts(sharded.state_dict())), reference.state_dict()
    planned = [rank for module in sharded.plan.plan.values() for table in module.values() for rank in table.ranks]
    assert parts or dist.get_rank() not in planned
    for name, part, ranges in parts:
        compare({name: part}, {name: state[name][ranges]}, **options)


def train_a_step(reference: torch.nn.Module, sharded: DistributedModelParallel, inputs, loss, replicas=None, **options):
    """Outputs before, and weights after it, are those of the reference, which trains on the samples of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters())).values()
    optimizers = [torch.optim.SGD([{"params": [*weights]}], RATE) for weights in (dense, reference.parameters())]
    for optimizer in optimizers:
        optimizer.zero_grad()
    ours, theirs = sharded(*inputs(rank)), reference(*inputs(rank))
    compare(ours, theirs, **options)
    loss(ours).backward()
    torch.stack([loss(reference(*inputs(rank_))) for rank_ in range(ranks)]).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    for _, part, _ in table_parts(sharded.state_dict()) if replicas else ():
        dist.all_reduce(part, group=replicas)
        part /= replicas.size()
    compare_tables(reference, sharded, **options)
