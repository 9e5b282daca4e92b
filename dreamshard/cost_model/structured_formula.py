"""What the structured network and its evaluators share: latent columns, inputs of the correction, and weights.

The network and its NumPy evaluator read columns, constants and orders from here only.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

WIDE_DIMS = (32.5, 64.5)
"""Dims above which the fused operator gives a row 16 and 32 threads."""

BOUND = 1.5
"""The correction changes a device's work by a factor of at most e^1.5 either way."""

LEAST_EXPONENT, MOST_EXPONENT = -15, 8  # of a table's work

# Inputs of the correction, in this order
WORK_INPUT, CONCENTRATION_INPUT = 0, 1  # of each member and phase: half a logarithm, and 2 x sqrt(sum w^2) / sum w
LOG_INPUTS = slice(2, 6)  # shared by all: half the logarithms of count, distinct work, dims and lookups
WIDE_INPUTS = slice(6, 8)  # shared by all: whether a table is wider than each of WIDE_DIMS
SHARED_INPUTS = slice(LOG_INPUTS.start, WIDE_INPUTS.stop)
CORRECTION_INPUTS = WIDE_INPUTS.stop

LEAST_WORK, LEAST_SQUARE, LEAST_SUM = 1e-6, 1e-12, 1e-3  # added before a logarithm or a quotient
ONE_TABLE = 0.5  # a device of a lower count has no table
COUNT_SHIFT = 1.0  # subtracted from half the logarithm of the number of tables


class LatentLayout:
    """Columns of the latent vector of a table, or of a device's sum.

    A *pair* is one member's forward or backward compute. Columns that all pairs share are counted from the end.

    Attributes:
        members: `M` networks of the ensemble.
        pairs: `2M`.
        work: columns of the work of each pair.
        squares: columns of the squared work of each pair.
        size: `L`.
    """

    wide = slice(-6, -4)  # tables wider than each of WIDE_DIMS
    distinct = -4  # distinct rows per sample x dim, hundreds
    dims = -3  # hundreds
    lookups = -2  # per sample, tens
    count = -1  # tables
    logs: ClassVar[list[int]] = [count, distinct, dims, lookups]  # in the order of the correction's inputs

    def __init__(self, members: int) -> None:
        self.members, self.pairs = members, 2 * members
        self.work, self.squares = slice(0, self.pairs), slice(self.pairs, 2 * self.pairs)
        self.size = 2 * self.pairs + len(self.logs) + len(WIDE_DIMS)


@dataclass(frozen=True)
class StructuredWeights:
    """Weights of a structured network, one row per pair.

    Attributes:
        layout: of the latents that the weights apply to.
        launch: `[2M]` fixed cost of a device with tables, before softplus.
        hidden_weight: `[2M, X, H]` of the correction.
        hidden_bias: `[2M, H]`.
        output_weight: `[2M, H]`.
        scale_ms: `[2]` milliseconds per unit of forward and backward compute.
        comm_ms: `[2, 4]` milliseconds per unit of `comm_inputs` in forward and backward communication.
    """

    layout: LatentLayout
    launch: Float[Tensor, " M2"]
    hidden_weight: Float[Tensor, "M2 X H"]
    hidden_bias: Float[Tensor, "M2 H"]
    output_weight: Float[Tensor, "M2 H"]
    scale_ms: Float[Tensor, " 2"]
    comm_ms: Float[Tensor, "2 4"]


def shared_inputs(sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B 6"]:
    """Inputs of the correction that all pairs share: count, distinct work, dims, lookups, wide tables."""
    logs = 0.5 * (sums[..., LatentLayout.logs] + LEAST_SUM).log()  # [*B, 4]
    logs[..., 0] -= COUNT_SHIFT
    return torch.cat([logs, sums[..., LatentLayout.wide].clamp(max=1)], dim=-1)


def work_input(work: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Input of the correction for a device's summed work."""
    return 0.5 * (work + LEAST_WORK).log()


def concentration_input(work: Float[Tensor, "*B"], square: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Input of the correction for how few tables do most of the work; 2 for a single table."""
    return 2 * (square + LEAST_SQUARE).sqrt() / (work + LEAST_WORK)


def comm_inputs(dims: Float[Tensor, "*B D"], num_devices: int | None = None) -> Float[Tensor, "*B D 4"]:
    """Inputs of an all-to-all in hundreds of dims: 1, dims that leave a device, the most that leave any, dims that arrive.

    `num_devices` is less than `D` where the last devices do not take part; all inputs of these are 0.
    """
    count = dims.shape[-1] if num_devices is None else num_devices
    share = (count - 1) / count
    largest = dims.max(dim=-1, keepdim=True).values.expand_as(dims)
    received = (dims.sum(dim=-1, keepdim=True) - dims) / count
    inputs = torch.stack([torch.ones_like(dims), dims * share, largest * share, received], dim=-1)
    inputs[..., count:, :] = 0
    return inputs
