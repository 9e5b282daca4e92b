"""A training step of tables of any sharding type, timed on one rank: fbgemm's operators, and collectives.

Operators run on real lookups as in TorchRec: a block of rows gets the lookups of its rows, numbered from its first; a
data-parallel copy gets those of the rank's own samples, and its backward pass makes a dense gradient; a dense optimizer
applies the sum of all ranks'. fbgemm is imported with the first operator, so everything that needs no device works without
it.

A step's values are constants: a collective's time depends on sizes alone. Each rank trains on a part of the batch: all on
as many samples, the first ones on one more if need be. Collectives that need equal parts pad the samples.
"""

import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import Exchange, Infeasible
from dreamshard.hardware.roofline import Floats
from dreamshard.tables import ON_ONE_DEVICE, ON_ONE_HOST, SHARDING_TYPES, Optimizer, Precision, ShardingType
from dreamshard.tasks import Activations, Shards
from dreamshard.testbeds.device import INT32_LIMIT, Device
from dreamshard.workloads import Lookups

ELEMENT_BYTES = 4  # fp32

Group = dist.ProcessGroup
Work = Callable[[], object]
VALUE = 1e-4  # of every exchanged element and gradient; small, so that weights stay finite over many passes
LEARNING_RATE = 0.01
EPSILON = 1e-8  # of the Adagrads
PLAIN_OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad")
"""Of data-parallel tables; fbgemm calls its own of these exact."""
PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16", "int8")}
OPTIMIZERS: dict[str, tuple[Optimizer, ...]] = {"cpu": PLAIN_OPTIMIZERS, "cuda": get_args(Optimizer)}
"""By type of device: weights that fbgemm's operators train (1.8; bf16 nowhere, int8 in no backward pass on the CPU)."""

_EXCHANGED: dict[ShardingType, str] = {
    **dict.fromkeys(ON_ONE_DEVICE, "all to all"),
    **dict.fromkeys(ON_ONE_HOST, "within a host"),
    "row_wise": "everywhere",
    "data_parallel": "never",
}
"""How the pooled vectors of a shard reach their samples; shards that differ in it have operators of their own."""


@dataclass(frozen=True)
class RankOperator:
    """One operator of `shards` (numbers among the rank's) that are exchanged alike, of one precision and cached alike.

    Its lookups are of the whole batch, or of the rank's samples if the shards are copies.
    """

    shards: list[int]
    module: torch.nn.Module
    lookups: Lookups

    def run(self) -> Tensor:
        """Look up; returns pooled vectors `[B, S]`."""
        pooled: Tensor = self.module(self.lookups.indices, self.lookups.offsets)
        return pooled


class RankOperators:
    """All operators of a rank's shards, among those of all ranks; data-parallel copies look up its samples of the batch.

    Raises:
        ValueError: lookups are missing.
    """

    def __init__(self, shards: Shards, device: Device, rank: int) -> None:
        counts = sample_counts(device.setup.batch_size, shards.num_devices)
        task, shards = shards.task, shards.on(rank)
        self.dense: DenseOptimizer | None = None
        self._shards, self._device = shards, device
        self._samples = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        self._bags = shards.tables.poolings.round().long().clamp(min=1).tolist()  # a feature for each
        alike = defaultdict[tuple[str, Precision, float, int], list[int]](list)
        shares, precisions = shards.cached_share.float().nan_to_num(0.0).tolist(), task.precisions
        for s, (table, kind) in enumerate(zip(shards.table.tolist(), shards.sharding_type.tolist(), strict=True)):
            sequence_dim = 0 if shards.tables.poolings[s] else int(shards.tables.dim[s])
            alike[_EXCHANGED[SHARDING_TYPES[kind]], precisions[table], shares[s], sequence_dim].append(s)
        kinds = sorted(alike.items())
        kept_bytes = shards.tables.rows * shards.tables.dim * task.weight_bytes[shards.table]
        # of copies and on a GPU it is not kept: the GPU's allocator keeps memory anyway
        kept_bytes *= ~shards.is_any("data_parallel") * (device.device.type == "cpu")
        memory = device.weights([int(kept_bytes[held].sum()) for _, held in kinds])
        self.operators = [self._built(*kind, held, part) for (kind, held), part in zip(kinds, memory, strict=True)]
        for operator in self.operators:  # one untimed step proves that memory suffices
            pooled = operator.run()
            pooled.backward(torch.zeros_like(pooled))
        if self.dense is not None:
            self.dense.weights.grad = None  # dense gradients add up
        device.synchronize()

    def _built(
        self,
        exchanged: str,
        precision: Precision,
        cached_share: float,
        sequence_dim: int,
        numbers: list[int],
        memory: Tensor,
    ) -> RankOperator:
        """The operator of the rank's shards `numbers`; on the CPU `memory` is of its weights.

        `cached_share` is the share of the rows that the GPU caches while all are in host memory; 0 for device memory.
        """
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            DenseTableBatchedEmbeddingBagsCodegen,
            PoolingMode,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        device, tables, optimizer = self._device.device, self._shards.tables, self._shards.task.optimizer
        on_cpu, is_copy = device.type == "cpu", exchanged == "never"
        shapes = list(zip(tables.rows[numbers].tolist(), tables.dim[numbers].tolist(), strict=True))
        parts = [self._lookups_of(s, is_copy) for s in numbers]
        indices = torch.cat([part.indices for part in parts])
        lengths = torch.cat([part.offsets.diff() for part in parts])  # bag `f * B + b` is sample `b` of feature `f`
        features = [t for t, s in enumerate(numbers) for _ in range(self._bags[s])]
        large = max(int(tables.rows[numbers].sum()), len(indices)) > INT32_LIMIT  # backward numbers all tables' rows
        dtype = torch.int64 if on_cpu or large or is_copy else torch.int32  # taken without conversion
        offsets = torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0))
        joined = Lookups(indices.to(device, dtype), offsets.to(device, dtype))
        if is_copy:
            dense = DenseTableBatchedEmbeddingBagsCodegen(shapes, features, use_cpu=on_cpu).to(device)
            self.dense = DenseOptimizer(dense.weights, shapes, optimizer)
            return RankOperator(numbers, dense, joined)
        place = EmbeddingLocation["MANAGED_CACHING" if cached_share else "HOST" if on_cpu else "DEVICE"]
        compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
        exact = "exact_" if optimizer in PLAIN_OPTIMIZERS else ""
        operator: torch.nn.Module = SplitTableBatchedEmbeddingBagsCodegen(
            [(*shape, place, compute) for shape in shapes],
            feature_table_map=features,
            pooling_mode=PoolingMode.NONE if sequence_dim else PoolingMode.SUM,
            weights_precision=SparseType(precision),
            output_dtype=SparseType.FP32,
            optimizer=EmbOptimType[f"{exact}{optimizer}".upper()],
            learning_rate=LEARNING_RATE,
            bounds_check_mode=BoundsCheckMode.NONE,  # lookups are checked once, when they are read
            device=device,
            preallocated_host_buffers={"weights": memory.view(SparseType(precision).as_dtype())} if on_cpu else None,
            cache_load_factor=cached_share,  # without effect in device memory
        )
        if not on_cpu:
            for weights in operator.split_embedding_weights():  # type: ignore[operator]  # a method of fbgemm
                weights.fill_(1)  # takes every page of host memory
        return RankOperator(numbers, operator, joined)

    def _lookups_of(self, shard: int, is_copy: bool) -> Lookups:
        tables, table = self._shards.task.tables, int(self._shards.table[shard])
        rows, (first, end) = int(tables.rows[table]), self._shards.rows[shard].tolist()
        lookups = self._device.read(tables.names[table], rows)
        if is_copy:
            offsets = lookups.offsets[self._samples.start : self._samples.stop + 1]
            lookups = Lookups(lookups.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        lookups = lookups.dealt(self._bags[shard])
        return lookups if (first, end) == (0, rows) else lookups.of_rows(first, end)


class DenseOptimizer:
    """The dense optimizer of data-parallel tables: one step by the gradient that an all-reduce summed; state starts at zero.

    `weights` `[W]` are those of all tables, flat; `shapes` are rows and columns of each table.
    """

    def __init__(self, weights: torch.nn.Parameter, shapes: list[tuple[int, int]], optimizer: Optimizer) -> None:
        self.weights, self._sizes, self._optimizer = weights, [rows * dim for rows, dim in shapes], optimizer
        self._state = [weights.new_zeros(rows, 1 if optimizer == "rowwise_adagrad" else dim) for rows, dim in shapes]

    @property
    def gradient(self) -> Float[Tensor, " W"]:
        """Of the last backward pass."""
        assert self.weights.grad is not None
        return self.weights.grad

    @torch.no_grad()
    def step(self) -> Tensor:
        """One step of plain SGD or an Adagrad."""
        if self._optimizer == "sgd":
            return self.weights.add_(self.gradient, alpha=-LEARNING_RATE)
        flats = (flat.split(self._sizes) for flat in (self.weights, self.gradient))
        for weight, flat, total in zip(*flats, self._state, strict=True):
            change = flat.view(len(total), -1)  # [rows, dim]
            square = change.square()
            total += square.mean(dim=1, keepdim=True) if self._optimizer == "rowwise_adagrad" else square
            weight.sub_((LEARNING_RATE * change / total.sqrt().add_(EPSILON)).flatten())
        return self.weights


def sample_counts(batch_size: int, num_ranks: int) -> list[int]:
    """Samples of each rank: all have as many, the first ones one more if need be."""
    return [batch_size // num_ranks + (r < batch_size % num_ranks) for r in range(num_ranks)]


def require_fbgemm() -> None:
    """Raise a ValueError that says what to install if fbgemm is missing."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise ValueError(
            "real measurements need fbgemm, which is not installed; install 'dreamshard[cpu]', or 'dreamshard[cuda]' for "
            "NVIDIA GPUs, or use the testbed `simulated`"
        )


def require_operators(shards: Shards, device_type: str) -> None:
    """Raise a ValueError with the first table, or precision and optimizer, that devices of this type cannot train."""
    task = shards.task
    for precision in set(task.precisions):
        if precision not in PRECISIONS[device_type] or task.optimizer not in OPTIMIZERS[device_type]:
            raise ValueError(
                f"fbgemm trains no {precision} tables with {task.optimizer} on {device_type}, so they cannot be measured; it "
                f"has {' and '.join(PRECISIONS[device_type])} with {', '.join(OPTIMIZERS[device_type])}"
            )
    is_plain = (task.weight_bytes[shards.table] == ELEMENT_BYTES) & (task.optimizer in PLAIN_OPTIMIZERS)
    refused = {
        "in host memory with a cache, which only GPUs have; measure it with cluster:cuda, or use the testbed `simulated`": (
            shards.in_host & (device_type == "cpu")
        ),
        f"a sequence; ranks measure sequences that are sharded {' or '.join(ON_ONE_DEVICE)}": (
            (shards.tables.poolings == 0) & ~shards.is_any(*ON_ONE_DEVICE)
        ),
        f"data-parallel, but such tables are measured in fp32 with {', '.join(PLAIN_OPTIMIZERS)}": (
            shards.is_any("data_parallel") & ~is_plain
        ),
    }
    for reason, is_refused in refused.items():
        for s in is_refused.nonzero().flatten().tolist():
            raise ValueError(f"table {shards.tables.names[s]!r} is {reason}")


class Teams(NamedTuple):
    """The groups of ranks that one rank exchanges among; rank `d` of `everyone` is device `d`.

    If tables are sharded by rows on one host, its ranks are `host`, and the ranks of equal number on all hosts `across`.
    """

    everyone: Group
    host: Group | None = None
    across: Group | None = None


def collectives_of(shards: Shards, teams: Teams, device: Device) -> list[tuple[Work, Work]]:
    """The exchanges of a rank in a step, one after another, with their buffers on the device.

    First of pooled vectors, until each rank has those of its samples; then of their gradients, until each rank has those of
    the vectors that it pooled. `shards` are those of all devices.
    """
    exchanges, place, carried = [], device.device, shards.carried  # [D, 4]
    everyone, host, across = teams
    counts, rank = sample_counts(device.setup.batch_size, everyone.size()), everyone.rank()
    most, dims, row_dims = counts[0], carried[:, 0], int(carried[:, 1].max())
    host_dims = carried[:: shards.devices_per_host, 3].tolist()
    if dims.any():
        sent = [count * int(dims[rank]) for count in counts]  # by sample's rank
        exchanges.append(all_to_all(sent, (counts[rank] * dims).tolist(), everyone, place))
    if row_dims:
        exchanges.append(_reduce_scatter(most * row_dims, everyone, place))
    if host is not None and across is not None:  # partial sums within the host, then each host's samples between hosts
        width = most * host_dims[rank // host.size()]
        sum_up, gather = _reduce_scatter(across.size() * width, host, place)
        there, back = all_to_all([width] * across.size(), [most * dim for dim in host_dims], across, place)
        exchanges.append((lambda: (sum_up(), there()), lambda: (back(), gather())))
    return exchanges


def measure_step(shards: Shards, device: Device, rank: int, teams: Teams | None = None) -> Floats | Infeasible:
    """`[4]` milliseconds on this rank by phase, or the first shards that did not fit.

    `shards` are those of all devices. Each operator runs alone; each collective begins when all ranks are there. Without
    `teams` there are no collectives.

    Raises:
        ValueError: lookups are missing.
    """
    everyone, buffer_bytes = (teams.everyone, 2 * ELEMENT_BYTES) if teams else (None, 0)  # both ways
    held = Activations(
        batch_size=device.setup.batch_size,
        sent_bytes=2 * ELEMENT_BYTES + buffer_bytes,  # vectors and gradients
        received_bytes=buffer_bytes,
    )
    task = replace(shards.task, activations=held)
    asked_bytes = int(replace(shards, task=task).on(rank).device_bytes.sum()) + task.received_bytes
    built = device.within_memory(
        lambda: (RankOperators(shards, device, rank), collectives_of(shards, teams, device) if teams else []),
        asked_bytes,
    )
    misfit = None
    if built is None:
        free, foreign = device.free_bytes(), device.foreign_bytes()
        misfit = Infeasible(device=rank, asked_bytes=asked_bytes, free_bytes=free, foreign_bytes=foreign)
    misfits = [misfit]
    if everyone is not None:
        misfits *= everyone.size()
        dist.all_gather_object(misfits, misfit, group=everyone)
    if infeasible := next(filter(None, misfits), None):
        return infeasible
    assert built is not None
    operators, collectives = built
    if not operators.operators:
        device.flush()
    looked_up = [device.cold(operator.run) for operator in operators.operators]
    forward_comm_ms = sum(_timed(there, everyone, device) for there, _ in collectives)
    backward_comm_ms = sum(_timed(back, everyone, device) for _, back in collectives)
    works = (partial(pooled.backward, torch.full_like(pooled, VALUE)) for pooled, _ in looked_up)
    backward_ms = sum(device.cold(work)[1] for work in works)  # of constant gradients, and the fused optimizers
    if operators.dense is not None:
        reduce = partial(dist.all_reduce, operators.dense.gradient, group=everyone)
        backward_comm_ms += _timed(reduce, everyone, device)
        backward_ms += device.timed(operators.dense.step)[1]
    return np.array([sum(spent_ms for _, spent_ms in looked_up), forward_comm_ms, backward_comm_ms, backward_ms])


def measure_exchange(exchange: Exchange, device: Device, team: Group) -> Floats:
    """`[2]` milliseconds of an all-to-all and its way back on this rank.

    Every rank sends each rank an equal share of its bytes, the first ones an element more if need be.

    Raises:
        MemoryError: this rank has no memory for the bytes.
    """
    shares = [sample_counts(sent // ELEMENT_BYTES, team.size()) for sent in exchange.sent_bytes.tolist()]
    sent, received = shares[team.rank()], [share[team.rank()] for share in shares]
    asked_bytes = 2 * ELEMENT_BYTES * (sum(sent) + sum(received))
    both = device.within_memory(lambda: all_to_all(sent, received, team, device.device), asked_bytes)
    if both is None:
        raise MemoryError(f"{asked_bytes} bytes do not fit a device that has {device.free_bytes()} free")
    device.flush()
    return np.array([_timed(work, team, device) for work in both])


def _timed(work: Work, team: Group | None, device: Device) -> float:
    """Milliseconds after all ranks are there, so that waiting is not timed as communication; 0 without a team.

    None goes on before all are done: on a CPU, one that computes already would hold up another that still receives.
    """
    if team is None:
        return 0.0
    dist.barrier(group=team)
    device.synchronize()
    spent_ms = device.timed(work, time.perf_counter_ns)[1]
    dist.barrier(group=team)
    return spent_ms


def all_to_all(sent: list[int], received: list[int], team: Group, place: torch.device) -> tuple[Work, Work]:
    """An all-to-all and its way back, by the elements that this rank sends to and receives from each."""
    sending, others = (torch.full((sum(counts),), VALUE, device=place) for counts in (sent, received))
    there = _exchange(dist.all_to_all_single, team, others, sending, received, sent)
    return there, _exchange(dist.all_to_all_single, team, sending, others, sent, received)


def _reduce_scatter(count: int, team: Group, place: torch.device) -> tuple[Work, Work]:
    """A reduce-scatter of partial sums, of which each rank gets `count` elements, and the all-gather back."""
    whole, gathered = (torch.full((team.size() * count,), VALUE, device=place) for _ in range(2))
    part, gradient = whole[:count].clone(), whole[:count].clone()
    there = _exchange(dist.reduce_scatter_single, team, part, whole)
    return there, _exchange(dist.all_gather_single, team, gathered, gradient)


def _exchange(collective: Callable[..., Any], team: Group, out: Tensor, given: Tensor, *counts: list[int]) -> Work:
    """A collective that fills `out`; nothing moves in a team of one."""
    return partial(collective, out, given, *counts, group=team) if team.size() > 1 else lambda: None
