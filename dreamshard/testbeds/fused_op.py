"""The fused operator of one device's tables: lookup and pooling forward, gradient and optimizer backward.

Builds fbgemm's table-batched embedding operator and its input. fbgemm is imported with the first operator, so everything
that needs no device works without it.

A new operator for each placement would allocate and fill gigabytes, and fresh zero pages would make lookups look cheap
(they all map to one page of memory). So all operators of a rank share one arena for weights, which is filled once and
grows to the largest shard.
"""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.workloads.lookups import Lookups

LEARNING_RATE = 0.01
WEIGHT_DTYPE: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
INDEX_DTYPE = {"cpu": torch.int64, "cuda": torch.int32}
"""Types that each build takes without conversion; a shard with more rows than int32 holds needs int64."""


@dataclass(frozen=True)
class ShardLookups:
    """The lookups of a shard in the operator's input format.

    Attributes:
        indices: `[N]` rows, table after table, sample after sample.
        offsets: `[M]`, M = T*B+1, of the same type; bag `t * B + b` is sample `b` of table `t`.
    """

    indices: Int[Tensor, " N"]
    offsets: Int[Tensor, " M"]

    def to(self, device: torch.device) -> "ShardLookups":
        """Copy to `device`."""
        return ShardLookups(self.indices.to(device), self.offsets.to(device))


class WeightArena:
    """Memory for the weights of one shard at a time, filled once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, which the next shard may use."""
        return self._memory.numel()

    def weights(self, num_weights: int, dtype: torch.dtype) -> Float[Tensor, " W"]:
        """`[W]` weights; they share the memory of earlier ones, which must no longer be in use."""
        num_bytes = num_weights * dtype.itemsize
        if num_bytes > self._memory.numel():
            self._memory = torch.empty(0, dtype=torch.uint8, device=self.device)  # free before taking more
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._memory[: num_bytes // 2 * 2].view(torch.float16).fill_(0.01)  # finite in both precisions
        return self._memory[:num_bytes].view(dtype)


def require_fbgemm() -> None:
    """Raise a ValueError that says what to install if fbgemm is missing."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise ValueError(
            "real measurements need fbgemm's operators, which are not installed; install 'dreamshard[cpu]', or "
            "'dreamshard[cuda]' where there is an NVIDIA GPU, or use the testbed `simulated`"
        )


def build_operator(
    tables: Tables, precision: Precision, optimizer: Optimizer, device: torch.device, arena: WeightArena | None = None
) -> torch.nn.Module:
    """The fused operator of `tables` on `device`: takes indices and offsets, returns `[B, sum of dims]` fp32.

    Args:
        arena: memory for its weights; None for zeros of its own.

    Raises:
        ValueError: fbgemm is not installed.
    """
    on_cpu = device.type == "cpu"
    fb = _fbgemm()
    location = fb.EmbeddingLocation.HOST if on_cpu else fb.EmbeddingLocation.DEVICE
    compute = fb.ComputeDevice.CPU if on_cpu else fb.ComputeDevice.CUDA
    shapes = zip(tables.rows.tolist(), tables.dim.tolist(), strict=True)
    operator: torch.nn.Module = fb.Operator(
        [(rows, dim, location, compute) for rows, dim in shapes],
        weights_precision={"fp32": fb.SparseType.FP32, "fp16": fb.SparseType.FP16}[precision],
        output_dtype=fb.SparseType.FP32,
        optimizer={"sgd": fb.OptimType.EXACT_SGD, "rowwise_adagrad": fb.OptimType.EXACT_ROWWISE_ADAGRAD}[optimizer],
        learning_rate=LEARNING_RATE,
        bounds_check_mode=fb.BoundsCheckMode.NONE,  # lookups are checked once, when they are read
        device=device,
    )
    num_weights = int((tables.rows * tables.dim).sum())
    dtype = WEIGHT_DTYPE[precision]
    weights = arena.weights(num_weights, dtype) if arena else torch.zeros(num_weights, dtype=dtype, device=device)
    if on_cpu:
        operator.weights_host = torch.nn.Parameter(weights)
    else:
        operator.weights_dev = weights
    return operator


def shard_lookups(lookups: Sequence[Lookups], batch_size: int, index_dtype: torch.dtype) -> ShardLookups:
    """The first `batch_size` samples of each table, table after table.

    Raises:
        ValueError: a table has fewer samples.
    """
    indices, offsets, start = [], [], 0
    for table in lookups:
        if table.batch_size < batch_size:
            raise ValueError(
                f"lookups of {table.batch_size} samples cannot fill a batch of {batch_size}; ingest the workload with a "
                "larger batch, or measure with a smaller one"
            )
        first = table.first(batch_size)
        indices.append(first.indices.to(index_dtype))
        offsets.append(first.offsets[:batch_size].to(index_dtype) + start)
        start += len(first.indices)
    offsets.append(torch.tensor([start], dtype=index_dtype, device=offsets[0].device))
    return ShardLookups(torch.cat(indices), torch.cat(offsets))


@dataclass(frozen=True)
class _Fbgemm:
    """The parts of fbgemm used here, and its operator without weights."""

    Operator: Any
    BoundsCheckMode: Any
    ComputeDevice: Any
    EmbeddingLocation: Any
    OptimType: Any
    SparseType: Any


@functools.cache
def _fbgemm() -> _Fbgemm:
    require_fbgemm()
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    class OperatorWithoutWeights(SplitTableBatchedEmbeddingBagsCodegen):  # type: ignore[misc]
        """Allocates one weight instead of all; the caller sets the real ones."""

        def _apply_split(self, split: Any, prefix: str, *args: Any, **options: Any) -> None:
            if prefix == "weights":
                split = type(split)(  # a dataclass or a named tuple, depending on fbgemm's version
                    dev_size=min(split.dev_size, 1),
                    host_size=min(split.host_size, 1),
                    uvm_size=split.uvm_size,
                    placements=split.placements,
                    offsets=split.offsets,
                )
            super()._apply_split(split, prefix, *args, **options)

    return _Fbgemm(OperatorWithoutWeights, BoundsCheckMode, ComputeDevice, EmbeddingLocation, EmbOptimType, SparseType)
