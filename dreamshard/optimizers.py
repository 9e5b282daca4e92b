"""The dense optimizer of data-parallel tables: one step by the gradient that an all-reduce summed."""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import Optimizer

LEARNING_RATE = 0.01
EPSILON = 1e-8  # of the Adagrads
PLAIN_OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad")
"""Of data-parallel tables; fbgemm calls its own of these exact."""


class DenseOptimizer:
    """Applies summed gradients of data-parallel tables; state starts at zero.

    Args:
        weights: `[W]` of all tables, flat, with their gradient.
        shapes: rows and columns of each.
    """

    def __init__(self, weights: torch.nn.Parameter, shapes: list[tuple[int, int]], optimizer: Optimizer) -> None:
        self.weights, self._shapes, self._optimizer = weights, shapes, optimizer
        by_row = optimizer == "rowwise_adagrad"
        self._state = [weights.new_zeros(rows, 1 if by_row else dim) for rows, dim in shapes]

    @property
    def gradient(self) -> Float[Tensor, " W"]:
        """Of the last backward pass."""
        assert self.weights.grad is not None
        return self.weights.grad

    @torch.no_grad()
    def step(self) -> Tensor:
        """One step of plain SGD or an Adagrad."""
        if self._optimizer == "sgd":
            return self.weights.add_(self.gradient, alpha=-LEARNING_RATE)
        tables = zip(self._by_table(self.weights), self._by_table(self.gradient), self._state, strict=True)
        for weight, change, total in tables:
            square = change.square()
            total += square.mean(dim=1, keepdim=True) if self._optimizer == "rowwise_adagrad" else square
            weight.sub_(LEARNING_RATE * change / total.sqrt().add_(EPSILON))
        return self.weights

    def _by_table(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([rows * dim for rows, dim in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
