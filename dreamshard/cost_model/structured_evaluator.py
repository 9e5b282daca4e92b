"""The structured cost network in NumPy: the mean of its members."""

import numpy as np
import torch

from dreamshard.cost_model import structured_formula as formula
from dreamshard.cost_model.evaluator import Array, Loads
from dreamshard.cost_model.structured_formula import StructuredWeights

_COUNT_SHIFT = np.array([2 * formula.COUNT_SHIFT, 0, 0, 0], np.float32)  # before halving


class StructuredEvaluator:
    def __init__(self, weights: StructuredWeights) -> None:
        self.layout = layout = weights.layout

        def array(value: torch.Tensor) -> Array:
            return np.ascontiguousarray(value.detach().numpy(), dtype=np.float32)

        self.hidden_weight = array(weights.hidden_weight)  # [2M, X, H]
        self.hidden_bias = array(weights.hidden_bias)[:, None, :]
        self.output_weight = array(weights.output_weight)[:, :, None] / formula.BOUND
        self.scale = np.tile(array(weights.scale_ms), layout.members) / np.float32(layout.members)  # [2M]
        launch = array(torch.nn.functional.softplus(weights.launch)) * self.scale
        self.launch = launch.reshape(-1, 2).sum(axis=0)  # [2]
        self.comm = array(weights.comm_ms).sum(axis=0)  # [4]: latency, own, largest, received

    def empty(self, batch: int, num_devices: int) -> Loads:
        shape = (batch, num_devices)
        _, own, largest, received = self.comm
        return Loads(
            np.zeros((*shape, self.layout.size), np.float32),
            np.zeros(shape, np.float32),
            np.full(shape, self.comm[0], np.float32),
            np.zeros((*shape, self.layout.pairs), np.float32),
            np.float32(((own + largest) * (num_devices - 1) - received) / num_devices),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        layout, sums = self.layout, np.maximum(sums, 0)  # taking a table away leaves rounding errors behind
        work = sums[:, layout.work] + formula.LEAST_WORK  # [N, 2M]
        inputs = np.empty((layout.pairs, len(sums), formula.CORRECTION_INPUTS), np.float32)
        np.log(work.T, out=inputs[..., formula.WORK_INPUT])
        np.log(sums[:, layout.logs] + formula.LEAST_SUM, out=inputs[0, :, formula.LOG_INPUTS])
        inputs[0, :, formula.LOG_INPUTS] -= _COUNT_SHIFT
        inputs[0, :, formula.LOG_INPUTS] *= 0.5
        np.minimum(sums[:, layout.wide], 1, out=inputs[0, :, formula.WIDE_INPUTS])
        inputs[1:, :, formula.SHARED_INPUTS] = inputs[0, :, formula.SHARED_INPUTS]
        inputs[..., formula.WORK_INPUT] *= 0.5
        root = np.sqrt(sums[:, layout.squares] + formula.LEAST_SQUARE)
        np.divide(2 * root.T, work.T, out=inputs[..., formula.CONCENTRATION_INPUT])
        hidden = inputs @ self.hidden_weight
        hidden += self.hidden_bias
        np.maximum(hidden, 0, out=hidden)
        correction = np.tanh((hidden @ self.output_weight)[..., 0].T)  # [N, 2M]
        correction *= formula.BOUND
        rates: Array = np.exp(correction, out=correction) * self.scale
        cost = (rates * sums[:, layout.work]).reshape(len(sums), -1, 2).sum(axis=1) + self.launch  # [N, 2]
        return cost[:, 0], cost[:, 1], rates

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """Exact for an empty device."""
        compute = loads.compute_ms + (loads.rates @ latent[:, self.layout.work, None])[..., 0]  # [B, D]
        empty = loads.sums[..., self.layout.count] < formula.ONE_TABLE
        if empty.any():
            forward, backward, _ = self.compute(latent)
            np.copyto(compute, (forward + backward)[:, None], where=empty)
        return compute, loads.comm_ms + (loads.ms_per_dim * self.table_width(latent))[:, None]

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        comm: Array = loads.ms_per_dim * self.table_width(sums) + self.comm[0]
        return comm

    def table_width(self, latents: Array) -> Array:
        """Hundreds of dims."""
        width: Array = latents[:, self.layout.dims]
        return width
