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
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from dreamshard.tables import BYTES_PER_ROW, Optimizer, Precision, Tables
from dreamshard.workloads import Lookups

LEARNING_RATE = 0.01
_ALIGNMENT = 256  # bytes, as CUDA allocates
WEIGHT_DTYPE: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.uint8}
OPTIMIZER_TYPE: dict[Optimizer, str] = {
    "sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
    "lamb": "LAMB",
    "partial_rowwise_adam": "PARTIAL_ROWWISE_ADAM",
    "partial_rowwise_lamb": "PARTIAL_ROWWISE_LAMB",
    "lars_sgd": "LARS_SGD",
}
"""Names in fbgemm's `EmbOptimType`."""
PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16", "int8")}
OPTIMIZERS: dict[str, tuple[Optimizer, ...]] = {
    "cpu": ("sgd", "rowwise_adagrad", "adagrad"),
    "cuda": tuple(OPTIMIZER_TYPE),
}
"""By type of device: what fbgemm's operators train (1.8; it has bf16 nowhere, and int8 in no backward pass on the CPU)."""
INDEX_DTYPE = {"cpu": torch.int64, "cuda": torch.int32}
"""Types that each build takes without conversion; a shard with more rows than int32 holds needs int64."""


class WeightArena:
    """Memory for the weights of one shard at a time, filled once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, which the next shard may use."""
        return self._memory.numel()

    def weights(self, num_weights: int, dtype: torch.dtype) -> Shaped[Tensor, " W"]:
        """`[W]` weights; they share the memory of earlier ones, which must no longer be in use."""
        num_bytes = num_weights * dtype.itemsize
        if num_bytes > self._memory.numel():
            self._memory = torch.empty(0, dtype=torch.uint8, device=self.device)  # free before taking more
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._memory[: num_bytes // 2 * 2].view(torch.float16).fill_(0.01)  # finite in both precisions
        return self._memory[:num_bytes].view(dtype)

    def divided(self, sizes: Sequence[int]) -> "list[WeightArena]":
        """Arenas of at least `sizes` bytes side by side in this one's memory, for operators in use together."""
        aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        memory = self.weights(sum(aligned), torch.uint8)
        parts = [WeightArena(self.device) for _ in sizes]
        for part, taken in zip(parts, memory.split(aligned), strict=True):
            part._memory = taken
        return parts


def require_fbgemm() -> None:
    """Raise a ValueError that says what to install if fbgemm is missing."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise ValueError(
            "real measurements need fbgemm's operators, which are not installed; install 'dreamshard[cpu]', or "
            "'dreamshard[cuda]' where there is an NVIDIA GPU, or use the testbed `simulated`"
        )


def require_operator(precision: Precision, optimizer: Optimizer, device_type: str) -> None:
    """Raise a ValueError where fbgemm has no operator of this precision and optimizer on this type of device."""
    if precision not in PRECISIONS[device_type] or optimizer not in OPTIMIZERS[device_type]:
        raise ValueError(
            f"fbgemm trains no {precision} tables with {optimizer} on {device_type}, so they cannot be measured; it has "
            f"{' and '.join(PRECISIONS[device_type])} with {', '.join(OPTIMIZERS[device_type])}; choose from these, or use "
            "the testbed `simulated`"
        )


def build_operator(
    tables: Tables,
    precision: Precision,
    optimizer: Optimizer,
    device: torch.device,
    arena: WeightArena,
    cached_share: float | None = None,
) -> torch.nn.Module:
    """The fused operator of `tables` on `device`: takes indices and offsets, returns `[B, sum of dims]` fp32.

    Args:
        tables: of one precision.
        precision: of their weights.
        optimizer: of the backward pass.
        device: that looks up.
        arena: memory for weights on the device.
        cached_share: share of the rows that the GPU caches while all are in host memory; None for device memory.

    Raises:
        ValueError: fbgemm is not installed, or has no such operator.
    """
    require_fbgemm()
    require_operator(precision, optimizer, device.type)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice

    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    if cached_share is not None:
        if on_cpu:
            raise ValueError(
                f"tables {list(tables.names[:5])} are in host memory with a cache, which only GPUs have; measure them with "
                "cluster:cuda, or use the testbed `simulated`"
            )
        location = EmbeddingLocation.MANAGED_CACHING
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    shapes = zip(tables.rows.tolist(), tables.dim.tolist(), strict=True)
    operator: torch.nn.Module = _operator_class()(
        [(rows, dim, location, compute) for rows, dim in shapes],
        weights_precision=SparseType(precision),
        output_dtype=SparseType.FP32,
        optimizer=EmbOptimType[OPTIMIZER_TYPE[optimizer]],
        learning_rate=LEARNING_RATE,
        bounds_check_mode=BoundsCheckMode.NONE,  # lookups are checked once, when they are read
        device=device,
        **({} if cached_share is None else {"cache_load_factor": cached_share}),
    )
    if cached_share is not None:
        operator.weights_uvm.fill_(1)  # type: ignore[operator]  # takes every page of host memory
        return operator
    per_row = tables.dim + BYTES_PER_ROW[precision]  # scale and bias are in bytes, as the weights of int8 are
    weights = arena.weights(int((tables.rows * per_row).sum()), WEIGHT_DTYPE[precision])
    if on_cpu:
        operator.weights_host = torch.nn.Parameter(weights)
    else:
        operator.weights_dev = weights
    return operator


def shard_lookups(lookups: Sequence[Lookups], batch_size: int, index_dtype: torch.dtype) -> Lookups:
    """The operator's input: the first `batch_size` samples of each table, table after table, in one type.

    Bag `t * B + b` is sample `b` of table `t`.

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
    return Lookups(torch.cat(indices), torch.cat(offsets))


@functools.cache
def _operator_class() -> Any:
    """Fbgemm's operator, but it allocates one weight instead of all; the caller sets the real ones."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    class OperatorWithoutWeights(SplitTableBatchedEmbeddingBagsCodegen):  # type: ignore[misc]
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

    return OperatorWithoutWeights
