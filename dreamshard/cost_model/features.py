"""Features of tables, the inputs of all networks, and the effect of other settings of a step (`work_ratios`).

The first 21 columns are DreamShard's (dim, rows, pooling factor, size, 17 access-count bins); the others are logarithms
and figures of reuse.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.costs import MeasuredOn
from dreamshard.hardware.accelerator import hardware, preset_of
from dreamshard.hardware.roofline import FIRST_BYTES, figures_of, kernels_s, placed_loads
from dreamshard.shards import Shards
from dreamshard.tables import NUM_BINS, Tables

NUM_PAPER_FEATURES = 4 + NUM_BINS
"""Dim, rows, pooling factor, size, and the access-count bins."""
BINS = slice(4, NUM_PAPER_FEATURES)
LOG_DIM, LOG_ROWS, LOG_POOLING, LOG_REUSE, LOG_UNIQUE, HOT = range(6)
"""Positions in `PHYSICAL`; distinct rows are those looked up per sample."""
NUM_FEATURES = NUM_PAPER_FEATURES + 6
PHYSICAL = slice(NUM_PAPER_FEATURES, NUM_FEATURES)
"""Columns of logarithms and of the share of lookups of hot rows."""

NormaliserScope = Literal["pool", "task"]

_RAW = [0, *range(4, NUM_FEATURES)]  # columns that the authors' program leaves as they are: dim and the bins
_LEAST_POOLING = 1e-3  # keeps the logarithm of a table without lookups finite
_HOT_BIN = 6  # rows looked up more than 32 times in a batch
_MIDPOINTS = 0.75 * 2.0 ** torch.arange(NUM_BINS)  # of (2^(j-1), 2^j]

_ALIKE = 16  # tables on a device whose kernels tell what a setting changes: alone, small ones would not fill it

FORWARD, BACKWARD, DISTINCT_ROWS, BATCH, VECTORS = range(5)
"""Columns of `work_ratios`."""


def features(tables: Tables) -> Float[Tensor, "T F"]:
    """Raw features, the paper's first."""
    dim, rows, pooling, bins = (
        column.double().numpy() for column in (tables.dim, tables.rows, tables.pooling_factor, tables.bins)
    )
    reuse = (tables.lookups.numpy() + 1.0) / (tables.unique_rows.numpy() + 1.0)  # [T] mean lookups per distinct row
    hot = lookups_by_bin(tables.bins.double())[:, _HOT_BIN:].sum(dim=1).numpy()  # [T]
    logs = np.log([dim, rows, pooling + _LEAST_POOLING, reuse, pooling / reuse + _LEAST_POOLING])
    columns = np.concatenate([[dim, rows, pooling, rows * dim], bins.T, logs, [hot]])
    return torch.from_numpy(columns.T.astype(np.float32, order="C"))  # [T, F]


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
        return cls(torch.zeros(NUM_FEATURES), torch.ones(NUM_FEATURES), "task")

    def of_task(self, tables: Tables) -> "Normaliser":
        """The normaliser of a task of these tables, for them and their shards."""
        if self.scope == "pool":
            return self
        normaliser = Normaliser.fit(tables)
        normaliser.mean[_RAW], normaliser.std[_RAW] = 0.0, 1.0
        return normaliser

    def __call__(self, tables: Tables) -> Float[Tensor, "T F"]:
        """Normalised features of any tables, in the pool or not; with the scope `task`, of the tables of one task."""
        normaliser = self.of_task(tables)
        return (features(tables) - normaliser.mean) / normaliser.std


def work_ratios(shards: Shards, fitted: MeasuredOn, batch_size: int) -> Float[Tensor, "S 5"]:
    """How the precision of its weights, the optimizer and the batch size change what each shard does, next to `fitted`.

    A cost network is fitted to steps of one setting. For another one, the work of a shard is scaled by the ratio of what the
    kernels of many such shards take by the roofline, of the fitted hardware's preset or else an A100's. Communication is
    scaled by the ratio of batches, since pooled vectors are always fp32.

    Returns:
        `[S, 5]`: time of the forward and of the backward kernels, bytes of distinct rows, samples, and vectors sent of a
            table, over a vector per sample.
    """
    task = replace(shards.task, precision=fitted.precision, precision_of={}, constraints=UNCONSTRAINED)
    as_fitted = replace(shards, task=replace(task, optimizer=fitted.optimizer))
    spec = preset_of(fitted.hardware) or hardware("a100")
    loads, times = [], []
    for setting, samples in ((shards, batch_size), (as_fitted, fitted.batch_size)):
        loads.append(placed_loads(setting, samples))
        times.append(torch.from_numpy(kernels_s(figures_of(spec, samples), _ALIKE * loads[-1].numpy())))
    distinct = loads[0][:, FIRST_BYTES] / loads[1][:, FIRST_BYTES].clamp(min=1e-9)
    batches = torch.full_like(distinct, batch_size / fitted.batch_size)
    ratios = [
        times[0] / times[1].clamp(min=1e-12),
        torch.stack([distinct, batches, batches * shards.tables.vectors], dim=1),
    ]
    return torch.cat(ratios, dim=1).float()
