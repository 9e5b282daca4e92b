"""How precision, optimizer and batch size of a training step change what each table costs.

A cost network is fitted to steps of one setting. For another one each table's work is scaled by the ratio of the bytes
that the fused operator moves for it, and its communication by the ratio of batches, since pooled vectors are always fp32.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.hardware.loads import OFFSET_BYTES, SECTOR_BYTES
from dreamshard.measured_on import StepSetting
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, Tables

# What a lookup takes besides its row's bytes (index, address, issue; in the backward pass also the sort), as bytes that
# take as long. Fitted to the presets' kernels on V100, A100, H100, H200 and B200, dim 16 and mixed dims.
FORWARD_LOOKUP_BYTES = 192
BACKWARD_LOOKUP_BYTES = 512

FORWARD, BACKWARD, DISTINCT, BATCH = range(4)
"""Columns of `work_ratios`."""


def work_ratios(tables: Tables, fitted: StepSetting, wanted: StepSetting) -> Float[Tensor, "T 4"]:
    """Ratios of what each table does in a step of `wanted` to what it does in one of `fitted`.

    Returns:
        `[T, 4]`: bytes moved by the forward and by the backward pass, bytes of distinct rows, and samples.
    """
    ratios = _loads(tables, wanted) / _loads(tables, fitted).clamp(min=1e-9)
    return ratios.float()


def _loads(tables: Tables, setting: StepSetting) -> Float[Tensor, "T 4"]:
    """Bytes of the forward pass, of the backward pass and of distinct rows, and samples; in float64.

    Distinct rows of another batch size are scaled in proportion, up to the table's rows.
    """
    dim, rows = tables.dim.double(), tables.rows.double()  # [T]
    lookups = tables.pooling_factor.double() * setting.batch_size
    distinct = tables.unique_rows.double() / tables.lookups.double().clamp(min=1)
    unique = torch.minimum(torch.minimum(lookups * distinct, rows), lookups)
    row_bytes = (dim * BYTES_PER_WEIGHT[setting.precision] / SECTOR_BYTES).ceil() * SECTOR_BYTES
    state_bytes = SECTOR_BYTES if BYTES_PER_ROW_STATE[setting.optimizer] else 0
    vector_bytes = dim * VECTOR_BYTES
    forward = lookups * (row_bytes + FORWARD_LOOKUP_BYTES) + setting.batch_size * vector_bytes
    backward = lookups * (vector_bytes + BACKWARD_LOOKUP_BYTES) + 2 * unique * (row_bytes + state_bytes)
    backward = backward + setting.batch_size * OFFSET_BYTES  # a table without lookups has its offsets
    samples = torch.full_like(dim, setting.batch_size)
    return torch.stack([forward, backward, (unique * row_bytes).clamp(min=1e-9), samples], dim=1)
