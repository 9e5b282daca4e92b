"""Bytes of weights and optimizer state, counted in fbgemm's own operators.

On the CPU fbgemm builds some of them; those for GPUs are built on the `meta` device, where they take no memory.
"""

from typing import get_args

import pytest
import torch

pytest.importorskip("fbgemm_gpu")

from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from dreamshard.tables import Optimizer, Precision
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of

OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "lamb": EmbOptimType.LAMB,
    "partial_rowwise_adam": EmbOptimType.PARTIAL_ROWWISE_ADAM,
    "partial_rowwise_lamb": EmbOptimType.PARTIAL_ROWWISE_LAMB,
    "lars_sgd": EmbOptimType.LARS_SGD,
}
SIZES = [(100, 16), (37, 4)]


def operator_bytes(precision: str, optimizer: str, place: tuple[ComputeDevice, EmbeddingLocation, str]) -> int:
    """Bytes of weights and momenta of an operator of `SIZES`."""
    compute, location, device = place
    operator = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in SIZES],
        optimizer=OPTIMIZERS[optimizer],
        weights_precision=SparseType(precision),
        cache_precision=SparseType.FP32,  # of a cache that these tables do not have
        device=torch.device(device),
    )
    tensors = dict(operator.named_buffers()) | dict(operator.named_parameters())
    kept = [t for name, t in tensors.items() if name.rpartition("_")[0] in ("weights", "momentum1", "momentum2")]
    return sum(t.numel() * t.element_size() for t in kept if t.is_floating_point() or t.dtype == torch.uint8)


def task_bytes(precision: str, optimizer: str) -> int:
    rows, dims = zip(*SIZES, strict=True)
    return int(PlacementTask(tables_of(rows, dims), 1, 2**20, precision, optimizer).table_bytes.sum())


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
def test_a_task_counts_the_bytes_of_the_cpu_operator(precision, optimizer):
    place = (ComputeDevice.CPU, EmbeddingLocation.HOST, "cpu")
    assert task_bytes(precision, optimizer) == operator_bytes(precision, optimizer, place)


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_a_task_counts_the_bytes_of_the_gpu_operator(precision, optimizer):
    place = (ComputeDevice.CUDA, EmbeddingLocation.DEVICE, "meta")
    assert task_bytes(precision, optimizer) == operator_bytes(precision, optimizer, place)
