"""One device and the shards it holds in turn: builds the fused operator of a shard, runs it cold, and times it.

Shared by every testbed that measures. Weights lie in one arena from shard to shard, and lookups stay on the device, so
that what a shard costs to set up is little. Every pass starts with cold caches: with warm ones a small shard looks much
cheaper than it is beside a model.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import Optimizer, Precision, Tables, parent_name
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.clocks import clock_of
from dreamshard.testbeds.fused_op import INDEX_DTYPE, ShardLookups, WeightArena, build_operator, shard_lookups
from dreamshard.workloads.lookups import Lookups, check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
FLUSHES = {"cpu": 1, "cuda": 3}
"""Written before each compute phase; on CUDA often enough to hide the time Python takes to launch the kernels."""
KEPT_LOOKUP_BYTES = {"cpu": 2**30, "cuda": 2**33}
GRADIENT = 1e-4  # of every pooled element; small, so that weights stay finite over many passes
INT32_LIMIT = 2**31 - 1

Result = TypeVar("Result")


def _unheard(stage: str) -> None:
    """Tell nobody of the stage."""


class DoesNotFitError(RuntimeError):
    """A shard asks its device for more memory than there is.

    Attributes:
        asked_bytes: by the shard.
        free_bytes: on the device.
    """

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"a shard asks for {asked_bytes} bytes of a device that has {free_bytes}")
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes


@dataclass(frozen=True)
class BuiltShard:
    """A shard that is ready to run.

    Attributes:
        operator: the fused operator of its tables.
        lookups: of one batch, on the device.
    """

    operator: torch.nn.Module
    lookups: ShardLookups


class ShardRunner:
    """Runs shards on one device.

    Args:
        setup: of the testbed.
        device: where the tables lie.
        enter: told the name of each stage when it begins, so that a hang or a failure can be located.
    """

    def __init__(self, setup: TestbedSetup, device: torch.device, enter: Callable[[str], None] = _unheard) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # as tensors on it call it
        self.setup = setup
        self.device = device
        self.clock = clock_of(device)
        self._enter = enter
        self._arena = WeightArena(device)
        self._flush = torch.zeros(FLUSH_BYTES[device.type] // 4, device=device)
        self._lookups: OrderedDict[tuple[str, int], Lookups] = OrderedDict()

    def build(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> BuiltShard:
        """The shard of `tables`, which has passed one untimed step, so that its memory is known to suffice.

        Raises:
            DoesNotFitError: the device has no room for it.
            ValueError: lookups are missing or not those of the tables.
        """
        self._enter("reading lookups")
        lookups = [self._read(name, rows) for name, rows in zip(tables.names, tables.rows.tolist(), strict=True)]
        self._enter("building the operator")
        num_lookups = sum(len(table.indices) for table in lookups)
        asked = asked_bytes(tables, precision, optimizer, self.setup.batch_size, num_lookups)

        def build() -> BuiltShard:
            large = max(int(tables.rows.sum()), num_lookups) > INT32_LIMIT  # backward numbers the rows of all tables
            index_dtype = torch.int64 if large else INDEX_DTYPE[self.device.type]
            shard = shard_lookups(lookups, self.setup.batch_size, index_dtype).to(self.device)
            built = BuiltShard(build_operator(tables, precision, optimizer, self.device, self._arena), shard)
            pooled = built.operator(shard.indices, shard.offsets)
            pooled.backward(torch.zeros_like(pooled))
            self.synchronize()
            return built

        return self.within_memory(build, asked)

    def within_memory(self, work: Callable[[], Result], asked: int) -> Result:
        """The work's result.

        Raises:
            DoesNotFitError: it asks for more than is free, or the device ran out of memory.
        """
        free = self.free_bytes()
        if free is not None and asked > free:
            raise DoesNotFitError(asked, free)
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # what the work has taken is given back once this clause has ended
        gc.collect()
        torch.cuda.empty_cache()
        raise DoesNotFitError(asked, self.free_bytes() or 0)

    def free_bytes(self) -> int | None:
        """What a shard may ask for: free memory and the arena, at most the setup's limit; None if unknown."""
        if self.device.type == "cuda":
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free: int | None = torch.cuda.mem_get_info(self.device)[0] + unused + self._arena.num_bytes
        else:
            available = _available_bytes()
            free = None if available is None else available + self._arena.num_bytes
        limits = [limit for limit in (free, self.setup.memory_limit_bytes) if limit is not None]
        return min(limits) if limits else None

    def forward(self, built: BuiltShard) -> tuple[Float[Tensor, "B S"], float]:
        """Pooled vectors and milliseconds of one cold lookup."""
        self._cool()
        return self.clock.compute(lambda: built.operator(built.lookups.indices, built.lookups.offsets))

    def backward(self, pooled: Float[Tensor, "B S"], gradient: Float[Tensor, "B S"]) -> float:
        """Milliseconds of one cold gradient and optimizer step."""
        self._cool()
        return self.clock.compute(lambda: _backward(pooled, gradient))[1]

    def gradient(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """What the layers above would hand back, where no exchange brings it."""
        return torch.full_like(pooled, GRADIENT)

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _cool(self) -> None:
        for _ in range(FLUSHES[self.device.type]):
            self._flush.add_(1)

    def _read(self, name: str, rows: int) -> Lookups:
        """A table's lookups on the device, kept where they were read before; the oldest give way to new ones."""
        key = (parent_name(name), rows)  # columns of one table share its lookups
        if key in self._lookups:
            self._lookups.move_to_end(key)
            return self._lookups[key]
        found = self.setup.lookups(key[0]).first(self.setup.batch_size)
        check_indices(found.indices, rows, f"table {name}")  # the operator does not
        kept = KEPT_LOOKUP_BYTES[self.device.type]
        if self.device.type == "cuda":
            dtype = torch.int32 if max(rows, len(found.indices)) <= INT32_LIMIT else torch.int64
            found = Lookups(found.indices.to(self.device, dtype), found.offsets.to(self.device))
        self._lookups[key] = found
        while len(self._lookups) > 1 and sum(map(_num_bytes, self._lookups.values())) > kept:
            self._lookups.popitem(last=False)
        return found


def asked_bytes(tables: Tables, precision: Precision, optimizer: Optimizer, batch_size: int, num_lookups: int) -> int:
    """What a shard needs: weights, optimizer state, lookups, pooled vectors and their gradients."""
    held = int(tables.memory_bytes(precision, optimizer).sum())
    pooled = 2 * 4 * batch_size * int(tables.dim.sum())
    return held + pooled + 4 * (num_lookups + batch_size * len(tables))


def _backward(pooled: Float[Tensor, "B S"], gradient: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    pooled.backward(gradient)
    return gradient


def _num_bytes(lookups: Lookups) -> int:
    return lookups.indices.nbytes + lookups.offsets.nbytes


def _available_bytes() -> int | None:
    """Memory that Linux would give without swapping; None elsewhere."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None
