"""One rank's share of measuring a placement: its operator, the exchange with the other ranks, and the clocks.

The same code runs on CPU (gloo) and CUDA (NCCL); only the clock differs. Compute on the CPU is timed as the CPU time of
this one thread, because wall time varies by tens of per cent where processes share cores; communication is wall time.
Every pass starts with cold caches: with warm ones a small shard looks much cheaper than it is beside a model.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.fused_op import (
    INDEX_DTYPE,
    ShardLookups,
    WeightArena,
    build_operator,
    shard_lookups,
)
from dreamshard.workloads.lookups import Lookups, check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
"""Written before each compute phase; on CUDA also long enough to hide the time Python takes to launch the kernels."""
CACHED_LOOKUP_BYTES = 2**30
GRADIENT = 1e-4  # of every pooled element; small, so that weights stay finite over many passes
INT32_LIMIT = 2**31 - 1


class Clock(Protocol):
    """Times a piece of work in milliseconds."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The work's result, and how long the device worked on it."""
        ...

    def exchange(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The work's result, and how long it took until this rank had sent and received all."""
        ...


class CpuClock:
    """CPU time of the calling thread for compute, wall time for communication."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`; autograd runs CPU work in the calling thread, so backward is counted too."""
        start = time.thread_time_ns()
        result = work()
        return result, (time.thread_time_ns() - start) / 1e6

    def exchange(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`."""
        start = time.perf_counter_ns()
        result = work()
        return result, (time.perf_counter_ns() - start) / 1e6


class CudaClock:
    """CUDA events on the current stream for both; the first event waits behind the flush, as the kernels do."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = work()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end)

    exchange = compute


class Exchange:
    """The all-to-all of pooled vectors and of their gradients among all ranks.

    Device `d` holds the whole batch for its own tables, `[B, S_d]` with `S_d` the sum of their dims; afterwards rank
    `r` holds its `b_r` samples of all tables. The first ranks take a sample more where D does not divide the batch.
    """

    def __init__(self, sum_dims: list[int], batch_size: int, rank: int, device: torch.device) -> None:
        num_ranks = len(sum_dims)
        samples = [batch_size // num_ranks + (r < batch_size % num_ranks) for r in range(num_ranks)]
        self._own = [count * sum_dims[rank] for count in samples]  # elements of own tables, by sample's rank
        self._all = [samples[rank] * dims for dims in sum_dims]  # elements of own samples, by table's rank
        self._shape = (batch_size, sum_dims[rank])
        self._device = device

    def barrier(self) -> None:
        """Wait until every rank is here, so that waiting is not counted as communication."""
        dist.barrier()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, " R"]:
        """Give each rank its samples of this rank's tables; get this rank's samples of all tables."""
        received = torch.empty(sum(self._all), device=self._device)
        dist.all_to_all_single(received, pooled.reshape(-1), self._all, self._own)
        return received

    def backward(self, gradient: Float[Tensor, " R"]) -> Float[Tensor, "B S"]:
        """The way back: gradients of this rank's tables for the whole batch."""
        received = torch.empty(sum(self._own), device=self._device)
        dist.all_to_all_single(received, gradient, self._own, self._all)
        return received.reshape(self._shape)

    def gradient(self) -> Float[Tensor, " R"]:
        """What the layers above would hand back for this rank's samples."""
        return torch.full((sum(self._all),), GRADIENT, device=self._device)


class RankMeasurer:
    """Measures this rank's shard of placement after placement; keeps weights and lookups from one to the next.

    Args:
        setup: of the testbed.
        rank: of this process, and the device of the placement that it measures.
        device: where its tables lie.
        enter: told the name of each stage when it begins, so that a hang or a failure can be located.
    """

    def __init__(self, setup: TestbedSetup, rank: int, device: torch.device, enter: Callable[[str], None]) -> None:
        self.setup = setup
        self.rank = rank
        self.device = device
        self._enter = enter
        self._arena = WeightArena(device)
        self._clock: Clock = CpuClock() if device.type == "cpu" else CudaClock()
        self._flush = torch.zeros(FLUSH_BYTES[device.type] // 4, device=device)
        self._lookups: OrderedDict[str, Lookups] = OrderedDict()

    def measure(self, task: PlacementTask, placement: Placement) -> Float[Tensor, "R 4"]:
        """`[R, 4]` milliseconds of each timed pass and phase on this rank."""
        own = task.tables.select(placement.tables_of(self.rank))
        self._enter("reading lookups")
        lookups = [self._read(name, rows) for name, rows in zip(own.names, own.rows.tolist(), strict=True)]
        self._enter("building the operator")
        operator, shard = None, None
        if len(own):
            large = max(int(own.rows.max()), sum(len(table.indices) for table in lookups)) > INT32_LIMIT
            index_dtype = torch.int64 if large else INDEX_DTYPE[self.device.type]
            shard = shard_lookups(lookups, self.setup.batch_size, index_dtype).to(self.device)
            operator = build_operator(own, task.precision, task.optimizer, self.device, self._arena)
        sum_dims = [int(task.tables.dim[placement.tables_of(d)].sum()) for d in range(placement.num_devices)]
        exchange = Exchange(sum_dims, self.setup.batch_size, self.rank, self.device)
        self._enter("exchanging with the other ranks")
        exchange.barrier()
        passes = [self._pass(operator, shard, exchange) for _ in range(self.setup.warmups + self.setup.repeats)]
        return torch.tensor(passes[self.setup.warmups :], dtype=torch.float64).reshape(-1, len(PHASES))

    def _pass(
        self, operator: torch.nn.Module | None, shard: ShardLookups | None, exchange: Exchange
    ) -> tuple[float, float, float, float]:
        """The four phases of one training step, in the order of `PHASES`."""
        pooled, forward_ms = torch.empty(self.setup.batch_size, 0, device=self.device), 0.0
        if operator is not None and shard is not None:
            self._flush.add_(1)
            pooled, forward_ms = self._clock.compute(lambda: operator(shard.indices, shard.offsets))
        gradient = exchange.gradient()
        exchange.barrier()
        _, forward_comm_ms = self._clock.exchange(lambda: exchange.forward(pooled.detach()))
        exchange.barrier()
        own_gradient, backward_comm_ms = self._clock.exchange(lambda: exchange.backward(gradient))
        backward_ms = 0.0
        if operator is not None:
            self._flush.add_(1)
            _, backward_ms = self._clock.compute(lambda: _backward(pooled, own_gradient))
        return forward_ms, forward_comm_ms, backward_comm_ms, backward_ms

    def _read(self, name: str, rows: int) -> Lookups:
        """The lookups of a table, from memory where they were read before; the oldest give way to new ones."""
        if name in self._lookups:
            self._lookups.move_to_end(name)
        else:
            self._lookups[name] = self.setup.lookups(name)
            while len(self._lookups) > 1 and sum(map(_num_bytes, self._lookups.values())) > CACHED_LOOKUP_BYTES:
                self._lookups.popitem(last=False)
        check_indices(self._lookups[name].indices, rows, f"table {name}")  # the operator does not
        return self._lookups[name]


def _backward(pooled: Float[Tensor, "B S"], gradient: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    pooled.backward(gradient)
    return gradient


def _num_bytes(lookups: Lookups) -> int:
    return lookups.indices.nbytes + lookups.offsets.nbytes
