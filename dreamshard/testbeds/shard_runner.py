"""One device that runs shards in turn: builds a shard's fused operator, runs it with cold caches, and times it.

All testbeds that measure share it. Weights stay in one arena and lookups on the device from shard to shard, which makes
the set-up of a shard cheap. Caches are cold because with warm ones a small shard looks much cheaper than it is in a model.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import psutil
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import Optimizer, Precision, Tables, parent_name
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.clocks import CLOCKS, medians, slowest_spread
from dreamshard.testbeds.fused_op import INDEX_DTYPE, WeightArena, build_operator, shard_lookups
from dreamshard.testbeds.shard_cache import ShardTiming
from dreamshard.workloads import Lookups
from dreamshard.workloads.lookups import check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
FLUSHES = {"cpu": 1, "cuda": 3}
"""Writes before each compute phase; on CUDA enough to hide the time that Python takes to launch the kernels."""
KEPT_LOOKUP_BYTES = {"cpu": 2**30, "cuda": 2**33}
GRADIENT = 1e-4  # of every pooled element; small, so that weights stay finite over many passes
INT32_LIMIT = 2**31 - 1

Result = TypeVar("Result")
BuiltShard = Callable[[], Tensor]
"""Looks up one batch of a shard's tables; returns pooled vectors `[B, S]`."""


class DoesNotFitError(RuntimeError):
    """A shard or an all-to-all asks for more bytes of memory than its device has free."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes are asked for on a device that has {free_bytes} free")
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes


class ShardRunner:
    """Runs shards on one device.

    Args:
        enter: called with the name of each stage as it begins, so that hangs and failures can be located.
    """

    def __init__(
        self, setup: TestbedSetup, device: torch.device, enter: Callable[[str], None] = lambda stage: None
    ) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # the name that tensors on it have
        self.setup = setup
        self.device = device
        self.clock = CLOCKS[device.type]
        self._enter = enter
        self.arena = WeightArena(device)
        self._flush = torch.zeros(FLUSH_BYTES[device.type] // 4, device=device)
        self._lookups: OrderedDict[tuple[str, int], Lookups] = OrderedDict()

    def measure(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> ShardTiming:
        """Time one shard by itself.

        Raises:
            DoesNotFitError: the device has no room for the shard.
            ValueError: lookups are missing or of other tables.
        """
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the CPU's clock counts one thread
        try:
            built = self.build(tables, precision, optimizer)
            num_passes = self.setup.warmups + self.setup.repeats
            passes = self.within_memory(lambda: [self._pass(built) for _ in range(num_passes)], 0)
        finally:
            torch.set_num_threads(num_threads)
        timed = torch.tensor(passes[self.setup.warmups :], dtype=torch.float64)  # [R, 2]
        forward_ms, backward_ms = medians(timed).tolist()
        return ShardTiming(
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            spread_ms=slowest_spread(timed[:, None]),
            repeats=len(timed),
            clock=self.clock.name,
            num_tables=len(tables),
            sum_dim=int(tables.dim.sum()),
            memory_bytes=int(tables.memory_bytes(precision, optimizer).sum()),
        )

    def build(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> BuiltShard:
        """Build the shard of `tables` and run one untimed step, which proves that its memory suffices.

        Raises:
            DoesNotFitError: the device has no room for the shard.
            ValueError: lookups are missing or of other tables.
        """
        lookups = self.read(tables.names, tables.rows.tolist())
        self._enter("building the operator")
        num_lookups = sum(len(table.indices) for table in lookups)

        def build() -> BuiltShard:
            large = max(int(tables.rows.sum()), num_lookups) > INT32_LIMIT  # backward numbers the rows of all tables
            index_dtype = torch.int64 if large else INDEX_DTYPE[self.device.type]
            batch = shard_lookups(lookups, self.setup.batch_size, index_dtype)
            operator = build_operator(tables, precision, optimizer, self.device, self.arena)
            built = partial(operator, batch.indices.to(self.device), batch.offsets.to(self.device))
            pooled = built()
            pooled.backward(torch.zeros_like(pooled))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return built

        return self.within_memory(build, asked_bytes(tables, precision, optimizer, self.setup.batch_size, num_lookups))

    def read(self, names: Sequence[str], rows: Sequence[int]) -> list[Lookups]:
        """Lookups of tables of so many rows on the device, the whole batch of each.

        Raises:
            ValueError: lookups are missing or of other tables.
        """
        self._enter("reading lookups")
        return [self._read(name, count) for name, count in zip(names, rows, strict=True)]

    def within_memory(self, work: Callable[[], Result], needed_bytes: int) -> Result:
        """Run work that needs this much memory.

        Raises:
            DoesNotFitError: it needs more than is free, or the device ran out of memory.
        """
        free = self.free_bytes()
        if needed_bytes > free:
            raise DoesNotFitError(needed_bytes, free)
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # the work's memory is released once this clause has ended
        gc.collect()
        torch.cuda.empty_cache()
        raise DoesNotFitError(needed_bytes, self.free_bytes())

    def free_bytes(self) -> int:
        """Memory for a shard: free memory and the arena, at most the setup's limit."""
        if self.device.type == "cuda":
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free = torch.cuda.mem_get_info(self.device)[0] + unused
        else:
            free = psutil.virtual_memory().available
        free += self.arena.num_bytes
        limit = self.setup.memory_limit_bytes
        return free if limit is None else min(free, limit)

    def forward(self, built: BuiltShard) -> tuple[Float[Tensor, "B S"], float]:
        """Pooled vectors and milliseconds of one cold lookup."""
        self._cool()
        return self.clock.compute(built)

    def backward(self, pooled: Float[Tensor, "B S"], gradient: Float[Tensor, "B S"]) -> float:
        """Milliseconds of one cold gradient and optimizer step."""

        def step() -> Tensor:
            pooled.backward(gradient)
            return gradient

        self._cool()
        return self.clock.compute(step)[1]

    def _pass(self, built: BuiltShard) -> tuple[float, float]:
        """Milliseconds of forward and backward of one step."""
        pooled, forward_ms = self.forward(built)
        return forward_ms, self.backward(pooled, torch.full_like(pooled, GRADIENT))

    def _cool(self) -> None:
        for _ in range(FLUSHES[self.device.type]):
            self._flush.add_(1)

    def _read(self, name: str, rows: int) -> Lookups:
        """A table's lookups on the device, from an LRU cache."""
        key = (parent_name(name), rows)  # columns of one table share its lookups
        if key in self._lookups:
            self._lookups.move_to_end(key)
            return self._lookups[key]
        lookups = self.setup.lookups(key[0]).first(self.setup.batch_size)
        check_indices(lookups.indices, rows, f"table {name}")  # the operator does not
        if self.device.type == "cuda":
            dtype = torch.int32 if max(rows, len(lookups.indices)) <= INT32_LIMIT else torch.int64
            lookups = Lookups(lookups.indices.to(self.device, dtype), lookups.offsets.to(self.device))
        self._lookups[key] = lookups
        limit = KEPT_LOOKUP_BYTES[self.device.type]
        while len(self._lookups) > 1 and sum(map(_num_bytes, self._lookups.values())) > limit:
            self._lookups.popitem(last=False)
        return lookups


def asked_bytes(tables: Tables, precision: Precision, optimizer: Optimizer, batch_size: int, num_lookups: int) -> int:
    """Memory of a shard: weights, optimizer state, lookups, pooled vectors and their gradients."""
    table_bytes = int(tables.memory_bytes(precision, optimizer).sum())
    pooled_bytes = 2 * 4 * batch_size * int(tables.dim.sum())
    return table_bytes + pooled_bytes + 4 * (num_lookups + batch_size * len(tables))


def _num_bytes(lookups: Lookups) -> int:
    return lookups.indices.nbytes + lookups.offsets.nbytes
