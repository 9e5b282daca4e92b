"""fbgemm's operators of one rank's shards, whatever ways its tables are sharded, on their real lookups.

As TorchRec does: a block of rows gets the lookups of its rows, numbered from its first; a data-parallel copy gets those of
the rank's own samples, and its backward pass makes a dense gradient; a dense optimizer applies the sum of all ranks'.

fbgemm is imported with the first operator, so everything that needs no device works without it.
"""

import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from dreamshard.optimizers import LEARNING_RATE, PLAIN_OPTIMIZERS, DenseOptimizer
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, SHARDING_TYPES, ShardingType
from dreamshard.shards import Shards
from dreamshard.tables import Optimizer, Precision
from dreamshard.testbeds.device import INT32_LIMIT, Device
from dreamshard.workloads import Lookups

VALUE = 1e-4  # of every exchanged element and gradient; small, so that weights stay finite over many passes
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
    """One operator of shards that are exchanged alike, of one precision and cached alike.

    Attributes:
        shards: numbers of its shards among the rank's, in the order of its columns.
        module: of fbgemm.
        lookups: of the whole batch, or of the rank's samples if they are copies.
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
        self._pooled: list[Tensor] = []
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
        memory = device.weights([int(kept_bytes[own].sum()) for _, own in kinds])
        self.operators = [self._built(*kind, own, part) for (kind, own), part in zip(kinds, memory, strict=True)]
        for operator in self.operators:  # one untimed step proves that memory suffices
            pooled = operator.run()
            pooled.backward(torch.zeros_like(pooled))
        device.synchronize()

    def forward(self) -> float:
        """Milliseconds of all lookups, each with cold caches."""
        timed = [self._device.cold(operator.run) for operator in self.operators]
        self._pooled = [pooled for pooled, _ in timed]
        return sum(spent_ms for _, spent_ms in timed)

    def backward(self) -> float:
        """Milliseconds of gradients and fused optimizers, each with cold caches, for constant gradients."""
        if self.dense is not None:
            self.dense.weights.grad = None  # dense gradients add up
        return sum(
            self._device.cold(partial(pooled.backward, torch.full_like(pooled, VALUE)))[1] for pooled in self._pooled
        )

    def _built(
        self,
        exchanged: str,
        precision: Precision,
        cached_share: float,
        sequence_dim: int,
        own: list[int],
        memory: Tensor,
    ) -> RankOperator:
        """The operator of the rank's shards `own`; on the CPU `memory` is of its weights.

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
        shapes = list(zip(tables.rows[own].tolist(), tables.dim[own].tolist(), strict=True))
        parts = [self._lookups_of(s, is_copy) for s in own]
        indices = torch.cat([part.indices for part in parts])
        lengths = torch.cat([part.offsets.diff() for part in parts])  # bag `f * B + b` is sample `b` of feature `f`
        features = [t for t, s in enumerate(own) for _ in range(self._bags[s])]
        large = max(int(tables.rows[own].sum()), len(indices)) > INT32_LIMIT  # backward numbers all tables' rows
        dtype = torch.int64 if on_cpu or large or is_copy else torch.int32  # taken without conversion
        offsets = torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0))
        joined = Lookups(indices.to(device, dtype), offsets.to(device, dtype))
        if is_copy:
            dense = DenseTableBatchedEmbeddingBagsCodegen(shapes, features, use_cpu=on_cpu).to(device)
            self.dense = DenseOptimizer(dense.weights, shapes, optimizer)
            return RankOperator(own, dense, joined)
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
        return RankOperator(own, operator, joined)

    def _lookups_of(self, shard: int, is_copy: bool) -> Lookups:
        tables, table = self._shards.task.tables, int(self._shards.table[shard])
        rows, (first, end) = int(tables.rows[table]), self._shards.rows[shard].tolist()
        lookups = self._device.read(tables.names[table], rows)
        if is_copy:
            offsets = lookups.offsets[self._samples.start : self._samples.stop + 1]
            lookups = Lookups(lookups.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        lookups = lookups.dealt(self._bags[shard])
        return lookups if (first, end) == (0, rows) else lookups.of_rows(first, end)


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
    task, in_host, names = shards.task, shards.in_host, shards.tables.names
    precisions = task.precisions
    for precision in set(precisions):
        if precision not in PRECISIONS[device_type] or task.optimizer not in OPTIMIZERS[device_type]:
            raise ValueError(
                f"fbgemm trains no {precision} tables with {task.optimizer} on {device_type}, so they cannot be measured; it "
                f"has {' and '.join(PRECISIONS[device_type])} with {', '.join(OPTIMIZERS[device_type])}"
            )
    if device_type == "cpu" and bool(in_host.any()):
        raise ValueError(
            f"{names[int(in_host.int().argmax())]!r} is in host memory with a cache on the device, which only GPUs have; "
            "measure it with cluster:cuda, or use the testbed `simulated`"
        )
    for s in ((shards.tables.poolings == 0) & ~shards.is_any(*ON_ONE_DEVICE)).nonzero().flatten().tolist():
        raise ValueError(
            f"{names[s]!r} is a sequence that is sharded {SHARDING_TYPES[shards.sharding_type[s]]}; ranks measure sequences "
            f"that are sharded {' or '.join(ON_ONE_DEVICE)}"
        )
    for s in shards.is_any("data_parallel").nonzero().flatten().tolist():
        precision = precisions[int(shards.table[s])]
        if precision != "fp32" or task.optimizer not in PLAIN_OPTIMIZERS:
            raise ValueError(
                f"{names[s]!r} is data-parallel in {precision} with {task.optimizer}, but such tables are measured in "
                f"fp32 with {', '.join(PLAIN_OPTIMIZERS)}"
            )
