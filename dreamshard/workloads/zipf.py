"""Lookups by a Zipf law: sampled, and expected.

It is the power law on [1, rows + 1) rounded down: rank k has the share of the area under x ** -alpha between k and
k + 1. Its distribution function has a closed form for any number of rows.
"""

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float

from dreamshard.files import MOST_ROWS
from dreamshard.tables import NUM_BINS

ALPHA = 1.05  # not 1
_WIDE = np.geomspace(1, MOST_ROWS, 938).astype(np.int64)  # each 3 % after the one before
_FIRST = np.union1d(np.arange(1, 129), _WIDE).astype(np.float64)
"""First ranks of groups whose rows count as alike: with these and the grid, shares of bins are exact to 1e-4."""
_GRID = 2**14


def draw_ranks(rows: int, num_lookups: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `num_lookups` ranks in 0..rows-1; rank 0 is the hottest."""
    draws = generator.random(num_lookups)
    ranks = (1 + draws * ((rows + 1.0) ** (1 - ALPHA) - 1)) ** (1 / (1 - ALPHA))
    return np.asarray(np.minimum(ranks.astype(np.int64) - 1, rows - 1))


def scatter(ranks: npt.NDArray[np.int64], rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Map ranks one to one to rows all over the table, as hashing does, by an affine permutation of 0..rows-1."""
    step = max(1, min(int(rows * (0.55 + 0.2 * generator.random())), 2**62 // rows))  # products fit 64 bits
    while math.gcd(step, rows) != 1:
        step += 1
    return (ranks * step + int(generator.integers(rows))) % rows


@cache
def expected_counts(rows: int, num_lookups: int) -> tuple[float, ...]:
    """`[17]` expected number of distinct rows per access-count bin; their sum is the expected distinct rows."""
    edges = np.append(_FIRST[: np.searchsorted(_FIRST, rows + 1)], rows + 1)
    ranks, powers = np.diff(edges), edges ** (1 - ALPHA)  # [G] rows of each group
    mean = num_lookups / (powers[-1] - 1) * np.diff(powers) / ranks  # [G] lookups of each row
    logs, shares = _shares_by_mean()
    at = (np.log(mean.clip(min=1e-15)) - logs[0]) / (logs[1] - logs[0])  # [G] on the grid
    below = at.astype(np.int64)
    upper = ranks * (mean > 0) * (at - below)
    return tuple(((ranks * (mean > 0) - upper) @ shares[below] + upper @ shares[below + 1]).tolist())


@cache
def _shares_by_mean() -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, "K 17"]]:
    """Logarithms of mean lookups of a row, and how likely the row is in each bin then, as lookups are Poisson."""
    logs = np.linspace(np.log(1e-16), np.log(1e13), _GRID)
    bounds = torch.tensor([0.0, *(2.0**j for j in range(NUM_BINS - 1))], dtype=torch.float64)[:, None]  # [17, 1]
    at_most = torch.special.gammaincc(bounds + 1, torch.from_numpy(np.exp(logs))[None])  # [17, K]
    shares = at_most.diff(dim=0, append=torch.ones_like(at_most[:1])).clamp(min=0)
    return logs, shares.T.contiguous().numpy()
