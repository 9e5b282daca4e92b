"""Bytes of weights and optimizer state, counted in fbgemm's own operators.

On the CPU fbgemm builds some of them; operators for GPUs are built on the `meta` device, where they take no memory.
"""

from itertools import product
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

NAMES = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "adagrad": "EXACT_ADAGRAD"}  # of fbgemm
SIZES = [(100, 16), (37, 4)]
CPU = (ComputeDevice.CPU, EmbeddingLocation.HOST, "cpu")
GPU = (ComputeDevice.CUDA, EmbeddingLocation.DEVICE, "meta")


@pytest.mark.parametrize(
    ("precision", "optimizer", "place"),
    [*product(get_args(Precision), NAMES, [CPU]), *product(get_args(Precision), get_args(Optimizer), [GPU])],
)
def test_a_task_counts_the_bytes_of_the_operator(precision, optimizer, place):
    compute, location, device = place
    operator = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in SIZES],
        optimizer=EmbOptimType[NAMES.get(optimizer, optimizer.upper())],
        weights_precision=SparseType(precision),
        cache_precision=SparseType.FP32,  # of a cache that these tables do not have
        device=torch.device(device),
    )
    tensors = dict(operator.named_buffers()) | dict(operator.named_parameters())
    kept = [t for name, t in tensors.items() if name.rpartition("_")[0] in ("weights", "momentum1", "momentum2")]
    held = sum(t.numel() * t.element_size() for t in kept if t.is_floating_point() or t.dtype == torch.uint8)
    task = PlacementTask(tables_of(*zip(*SIZES, strict=True)), 1, 2**20, precision, optimizer)
    assert int(task.table_bytes.sum()) == held
