"""Features of tables, the inputs of all networks, and the effect of other settings of a step (`work_ratios`).

The first 21 columns are DreamShard's (dim, rows, pooling factor, size, 17 access-count bins); the others are logarithms
and figures of reuse.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import MeasuredOn
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.hardware.loads import OFFSET_BYTES, SECTOR_BYTES
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, NUM_BINS, Tables

PAPER_FEATURES = ("dim", "rows", "pooling_factor", "size", *(f"bin_{j}" for j in range(NUM_BINS)))
PHYSICAL_FEATURES = ("log_dim", "log_rows", "log_pooling", "log_reuse", "log_unique", "hot_share")
FEATURES = PAPER_FEATURES + PHYSICAL_FEATURES
NUM_PAPER_FEATURES = len(PAPER_FEATURES)

BINS = slice(4, NUM_PAPER_FEATURES)
"""Columns of the access-count bins."""

NormaliserScope = Literal["pool", "task"]

_RAW = [0, *range(4, len(FEATURES))]  # columns that the authors' program leaves as they are: dim and the bins
_LEAST_POOLING = 1e-3  # keeps the logarithm of a table without lookups finite
_HOT_BIN = 6  # rows looked up more than 32 times in a batch
_MIDPOINTS = 0.75 * 2.0 ** torch.arange(NUM_BINS)  # of (2^(j-1), 2^j]

# The cost of a lookup besides its row's bytes (index, address, issue; in the backward pass also the sort), as bytes that
# take as long. Fitted to the presets' kernels on V100, A100, H100, H200 and B200, dim 16 and mixed dims.
FORWARD_LOOKUP_BYTES = 192
BACKWARD_LOOKUP_BYTES = 512

FORWARD, BACKWARD, DISTINCT_ROWS, BATCH, VECTORS = range(5)
"""Columns of `work_ratios`."""


def features(tables: Tables) -> Float[Tensor, "T F"]:
    """Raw features in the order of `FEATURES`; `log_unique` counts distinct rows looked up per sample."""
    dim, rows, pooling, bins = (
        each.double().numpy() for each in (tables.dim, tables.rows, tables.pooling_factor, tables.bins)
    )
    reuse = (tables.lookups.numpy() + 1.0) / (tables.unique_rows.numpy() + 1.0)  # [T] mean lookups per distinct row
    hot = lookups_by_bin(tables.bins.double())[:, _HOT_BIN:].sum(dim=1).numpy()  # [T]
    logs = np.log([dim, rows, pooling + _LEAST_POOLING, reuse, pooling / reuse + _LEAST_POOLING])
    found = np.concatenate([[dim, rows, pooling, rows * dim], bins.T, logs, [hot]])
    return torch.from_numpy(found.T.astype(np.float32, order="C"))  # [T, F]


def lookups_by_bin(bins: Float[Tensor, "*B 17"]) -> Float[Tensor, "*B 17"]:
    """Share of a table's lookups in the rows of each bin; 0 without lookups."""
    mass = bins.clamp(min=0) * _MIDPOINTS.to(bins.dtype)
    return mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class Normaliser:
    """Mean and spread of each feature, saved with the model.

    Attributes:
        mean: `[F]`.
        std: `[F]`, 1 where a feature is constant.
        scope: `pool` for the statistics of the training pool; `task` where each task is normalised by its own, as in the
            authors' program (`utils.py`: rows, pooling factor and size; dim and bins stay as they are).
    """

    mean: Float[Tensor, " F"]
    std: Float[Tensor, " F"]
    scope: NormaliserScope = "pool"

    @classmethod
    def fit(cls, pool: Tables) -> "Normaliser":
        """Statistics of `pool`."""
        raw = features(pool).double()
        std = raw.std(dim=0, correction=0)
        constant = std < 1e-9 * (1 + raw.mean(dim=0).abs())
        return cls(raw.mean(dim=0).float(), torch.where(constant, 1.0, std).float())

    @classmethod
    def per_task(cls) -> "Normaliser":
        """As in the authors' program."""
        return cls(torch.zeros(len(FEATURES)), torch.ones(len(FEATURES)), "task")

    def of_task(self, tables: Tables) -> "Normaliser":
        """The normaliser of a task of these tables, for them and their shards."""
        if self.scope == "pool":
            return self
        own = Normaliser.fit(tables)
        own.mean[_RAW], own.std[_RAW] = 0.0, 1.0
        return own

    def __call__(self, tables: Tables) -> Float[Tensor, "T F"]:
        """Normalised features of any tables, in the pool or not; with the scope `task`, of the tables of one task."""
        own = self.of_task(tables)
        return (features(tables) - own.mean) / own.std


def work_ratios(tables: Tables, fitted: MeasuredOn, wanted: MeasuredOn) -> Float[Tensor, "T 5"]:
    """How another precision, optimizer or batch size changes what each table does: in a step of `wanted`, over `fitted`.

    A cost network is fitted to steps of one setting. For another one each table's work is scaled by the ratio of the bytes
    that the fused operator moves for it, and its communication by the ratio of batches, since pooled vectors are always
    fp32.

    Returns:
        `[T, 5]`: bytes moved by the forward and by the backward pass, bytes of distinct rows, samples, and vectors sent of
            a table, over a vector per sample.
    """
    ratios = _loads(tables, wanted) / _loads(tables, fitted).clamp(min=1e-9)
    return torch.cat([ratios, ratios[:, BATCH:] * tables.vectors[:, None]], dim=1).float()


def _loads(tables: Tables, setting: MeasuredOn) -> Float[Tensor, "T 4"]:
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
