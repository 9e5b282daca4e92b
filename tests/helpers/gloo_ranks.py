"""Ranks of a gloo group that share one import of TorchRec, and a training step compared with one unsharded."""

import gc
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardedTensor
from torchrec.optim.optimizers import in_backward_optimizer_filter

TIMEOUT_S, RATE = 120, 0.5
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
        return [found for _ in processes if (found := queue.get(timeout=TIMEOUT_S))]
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
            own = value.to_local()
            shards = zip(own.local_shards(), own.local_offsets(), own.local_sizes(), strict=False)
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
    assert parts
    for name, part, ranges in parts:
        compare({name: part}, {name: state[name][ranges]}, **options)


def train_a_step(
    reference: torch.nn.Module,
    sharded: DistributedModelParallel,
    inputs: Callable[[int], tuple],
    loss: Callable[[Outputs], torch.Tensor],
    replicas: dist.ProcessGroup | None = None,
    **options: Any,
) -> None:
    """Outputs before, and weights after it, are those of the reference, which trains on the samples of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters())).values()
    optimizers = [torch.optim.SGD(own, RATE) for own in (dense, reference.parameters())]
    for optimizer in optimizers:
        optimizer.zero_grad()
    ours, theirs = sharded(*inputs(rank)), reference(*inputs(rank))
    compare(ours, theirs, **options)
    loss(ours).backward()
    torch.stack([loss(reference(*inputs(each))) for each in range(ranks)]).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    for _, part, _ in table_parts(sharded.state_dict()) if replicas else ():
        dist.all_reduce(part, group=replicas)
        part /= replicas.size()
    compare_tables(reference, sharded, **options)
