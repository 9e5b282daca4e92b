"""Cost networks in NumPy, for placing: the cost of a device, and the cost of one more table on it.

Placing takes thousands of small steps, where a tensor library spends most of the time on overhead; NumPy is several
times faster there. An evaluator is made from a trained network and agrees with it to rounding.

A step changes one device per episode, so only that device is evaluated (`mdp.step`). The effect of a table on the other
devices is taken to first order: the cost before plus the device's current rates times the table's work.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass
class Loads:
    """What devices hold and cost.

    Attributes:
        sums: `[B, D, L]` latents summed over the device's tables.
        compute_ms: `[B, D]` forward and backward compute.
        comm_ms: `[B, D]` both all-to-alls, if the device were the widest.
        rates: `[B, D, R]` milliseconds of compute per unit of work of one more table.
        ms_per_dim: growth of `comm_ms` with a table's width; 0 where that depends on the device.
    """

    sums: Array
    compute_ms: Array
    comm_ms: Array
    rates: Array
    ms_per_dim: np.float32


@runtime_checkable
class ShardEvaluator(Protocol):
    """Predicted costs of the shards that devices hold."""

    def empty(self, batch: int, num_devices: int) -> Loads:
        """`batch` episodes of devices without tables."""

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """Forward ms `[N]`, backward ms `[N]` and rates `[N, R]` of shards of latents `[N, L]` that are not empty."""

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """`[B, D]` compute and communication of each device once it also holds the table of `latent` `[B, L]`.

        Communication is as if the device were the widest.
        """

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """`[N]` communication of shards of latents `[N, L]` as in `Loads.comm_ms`."""


Layers = list[tuple[Array, Array]]


def mlp_arrays(module: torch.nn.Module) -> Layers:
    """Weights `[in, out]` and biases of the linear layers of a sequence with ReLU between them."""
    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    return [(np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy()) for layer in linear]


def run_mlp(layers: Layers, value: Array) -> Array:
    """The sequence's output."""
    for weight, bias in layers[:-1]:
        value = value @ weight
        value += bias
        np.maximum(value, 0, out=value)
    weight, bias = layers[-1]
    return value @ weight + bias
