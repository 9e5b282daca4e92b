"""Curves through points that never fall; torch alone, since machines that only measure have no scipy."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MonotoneCurve:
    """A monotone cubic interpolation (Fritsch and Carlson 1980, with Fritsch and Butland's slopes of 1984).

    Attributes:
        x: `[K]` rising.
        y: `[K]` never falling.
        slopes: `[K]` at the points.
    """

    x: Float[Tensor, " K"]
    y: Float[Tensor, " K"]
    slopes: Float[Tensor, " K"]

    @staticmethod
    def through(x: Float[Tensor, " K"], y: Float[Tensor, " K"]) -> "MonotoneCurve":
        """Through at least 2 points."""
        width = x.diff()
        secant = y.diff() / width  # [K-1]
        left, right = secant[:-1], secant[1:]
        weight = (width[:-1] + 2 * width[1:]) / (3 * (width[:-1] + width[1:]))
        inner = left * right / (weight * right + (1 - weight) * left).clamp(min=1e-30)
        return MonotoneCurve(x, y, torch.cat([secant[:1], inner, secant[-1:]]))

    def at(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Values at `x`, which is between the first and the last point."""
        left = (torch.bucketize(x, self.x, right=True) - 1).clamp(min=0, max=len(self.x) - 2)
        width = self.x[left + 1] - self.x[left]
        part = (x - self.x[left]) / width
        rise = self.y[left + 1] - self.y[left]
        start, end = self.slopes[left] * width, self.slopes[left + 1] * width
        cubic = (start + end - 2 * rise) * part
        return self.y[left] + part * (start + part * (3 * rise - 2 * start - end + cubic))


def nearest_rising(values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """The closest values by least squares that never fall (pool adjacent violators)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, size = means.pop(), sizes.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
    return torch.tensor(means, dtype=values.dtype).repeat_interleave(torch.tensor(sizes))
