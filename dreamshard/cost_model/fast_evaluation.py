"""The cost networks again, in NumPy, for placing: what one device's tables cost, and what one more table would add.

Placing takes thousands of small steps, where the overhead of a tensor library is most of the time; arrays of a few
numbers are several times faster here. Each class is made from a trained network and agrees with it to rounding.

A step changes one device per episode, so only that device is evaluated (`refresh`). A table's effect on the *other*
devices is taken to first order: `before + rates . work`, where the rates are those of the device as it stands.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.cost_model.networks import CostNetwork, PaperCostNetwork, StructuredCostNetwork

Array = NDArray[np.float32]
Indices = NDArray[np.int64]

_LEAST_WORK, _LEAST_SQUARE, _LEAST_SUM = np.float32(1e-6), np.float32(1e-12), np.float32(1e-3)  # logs of nothing
_SHARED = [-1, -4, -3, -2]  # count, distinct, dims, lookups
_DIMS = -3
_WIDE = slice(-6, -4)  # tables wider than 32, than 64
_COUNT_SHIFT = np.array([2, 0, 0, 0], np.float32)
_HALF = np.float32(0.5)
_ONE_TABLE = np.float32(0.5)  # a device whose count is below has no table


@dataclass
class Loads:
    """What devices hold and cost.

    Attributes:
        sums: `[B, D, L]` latents summed over the device's tables.
        compute_ms: `[B, D]` forward and backward compute.
        comm_ms: `[B, D]` both all-to-alls, if the device were the widest.
        rates: `[B, D, R]` milliseconds of compute per unit of work that one more table would bring.
        ms_per_dim: by how much `comm_ms` grows with a table's width; 0 where that depends on the device.
    """

    sums: Array
    compute_ms: Array
    comm_ms: Array
    rates: Array
    ms_per_dim: np.float32


@runtime_checkable
class ShardCosts(Protocol):
    """Incremental costs of shards."""

    def empty(self, batch: int, num_devices: int) -> Loads:
        """`batch` episodes of devices without tables."""
        ...

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """Forward ms `[N]`, backward ms `[N]` and rates `[N, R]` of shards of latents `[N, L]` that are not empty."""
        ...

    def after(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """`[B, D]` compute and communication of each device once it also holds the table of `latent` `[B, L]`.

        Communication is as if the device were the widest.
        """
        ...

    def shard_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """`[N]` what `Loads.comm_ms` is for shards of latents `[N, L]`."""
        ...

    def table_width(self, latents: Array) -> Array:
        """`[T]` what each table adds to its device's width."""
        ...

    def exchange(self, sums: Array) -> "Exchange":
        """Communication of devices of latents `[D, L]`: what each causes, and what the widest causes for all."""
        ...


@dataclass(frozen=True)
class Exchange:
    """Communication of devices as `own_ms + ms_per_width * (the largest width)`.

    Attributes:
        own_ms: `[D]`.
        width: `[D]`; the largest governs everyone.
        ms_per_width: milliseconds per unit of the largest width.
        own_ms_per_width: by how much `own_ms` grows with one unit of width, the total being constant.
    """

    own_ms: Array
    width: Array
    ms_per_width: float
    own_ms_per_width: float


def refresh(costs: ShardCosts, loads: Loads, changed: tuple[Indices, Indices]) -> tuple[Array, Array]:
    """Evaluate the one device per episode that changed; returns its forward and backward compute, `[B]` each.

    Args:
        changed: episodes and their devices, `[B]` each.
    """
    sums = loads.sums[changed]
    forward, backward, rates = costs.compute(sums)
    loads.compute_ms[changed] = forward + backward
    loads.comm_ms[changed] = costs.shard_comm_ms(sums, loads)
    loads.rates[changed] = rates
    return forward, backward


class StructuredShardCosts:
    """`StructuredCostNetwork`: the mean of its members."""

    def __init__(self, network: StructuredCostNetwork) -> None:
        pairs = 2 * network.members
        self.members, self.pairs, self.latent_size = network.members, pairs, network.latent_size

        def array(value: torch.Tensor) -> Array:
            return np.ascontiguousarray(value.detach().numpy(), dtype=np.float32)

        self.hidden_weight = array(network.hidden_weight).reshape(pairs, -1, network.hidden)  # [2M, 8, H]
        self.hidden_bias = array(network.hidden_bias).reshape(pairs, 1, network.hidden)
        self.output_weight = array(network.output_weight).reshape(pairs, network.hidden, 1) / network.bound
        self.bound = np.float32(network.bound)
        scale = array(network.scale_ms)
        self.scale = np.tile(scale, network.members) / np.float32(network.members)  # [2M]
        launch = array(torch.nn.functional.softplus(network.launch)).reshape(pairs) * self.scale
        self.launch = launch.reshape(-1, 2).sum(axis=0)  # [2]
        self.comm = array(network.comm_ms).sum(axis=0)  # [4]: latency, own, largest, received

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardCosts`."""
        shape = (batch, num_devices)
        return Loads(
            np.zeros((*shape, self.latent_size), np.float32),
            np.zeros(shape, np.float32),
            np.full(shape, self.comm[0], np.float32),
            np.zeros((*shape, self.pairs), np.float32),
            self._slope(num_devices),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardCosts`; shards must not be empty."""
        sums = np.maximum(sums, 0)  # taking a table away leaves rounding behind
        pairs, work = self.pairs, sums[:, : self.pairs] + _LEAST_WORK  # [N, 2M]
        seen = np.empty((pairs, len(sums), self.hidden_weight.shape[1]), np.float32)
        np.log(work.T, out=seen[..., 0])
        np.log(sums[:, _SHARED] + _LEAST_SUM, out=seen[0, :, 2:6])
        seen[0, :, 2:6] -= _COUNT_SHIFT
        seen[0, :, 2:6] *= _HALF
        np.minimum(sums[:, _WIDE], 1, out=seen[0, :, 6:])
        seen[1:, :, 2:] = seen[0, :, 2:]
        seen[..., 0] *= _HALF
        np.divide(2 * np.sqrt(sums[:, pairs : 2 * pairs] + _LEAST_SQUARE).T, work.T, out=seen[..., 1])
        hidden = seen @ self.hidden_weight
        hidden += self.hidden_bias
        np.maximum(hidden, 0, out=hidden)
        correction = np.tanh((hidden @ self.output_weight)[..., 0].T)  # [N, 2M]
        correction *= self.bound
        rates: Array = np.exp(correction, out=correction) * self.scale
        cost = (rates * sums[:, :pairs]).reshape(len(sums), -1, 2).sum(axis=1) + self.launch  # [N, 2]
        return cost[:, 0], cost[:, 1], rates

    def after(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """See `ShardCosts`; exact for an empty device."""
        added = loads.compute_ms + (loads.rates @ latent[:, : self.pairs, None])[..., 0]  # [B, D]
        empty = loads.sums[..., -1] < _ONE_TABLE
        if empty.any():
            forward, backward, _ = self.compute(latent)
            np.copyto(added, (forward + backward)[:, None], where=empty)
        return added, loads.comm_ms + (loads.ms_per_dim * latent[:, _DIMS])[:, None]

    def shard_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """See `ShardCosts`."""
        comm: Array = loads.ms_per_dim * sums[:, _DIMS] + self.comm[0]
        return comm

    def _slope(self, num_devices: int) -> np.float32:
        """Milliseconds per dim of a device that is the widest."""
        _, own, largest, received = self.comm
        return np.float32(((own + largest) * (num_devices - 1) - received) / num_devices)

    def exchange(self, sums: Array) -> Exchange:
        """See `ShardCosts`."""
        dims = sums[:, _DIMS]
        num_devices = len(dims)
        share = (num_devices - 1) / num_devices
        latency, own, largest, received = (float(value) for value in self.comm)
        own_ms = np.float32(latency) + np.float32(own * share) * dims
        own_ms += np.float32(received / num_devices) * (dims.sum() - dims)
        return Exchange(own_ms, dims, largest * share, own * share - received / num_devices)

    def table_width(self, latents: Array) -> Array:
        """See `ShardCosts`."""
        width: Array = latents[:, _DIMS]
        return width


class PaperShardCosts:
    """`PaperCostNetwork`: three heads on the summed latents; the effect of one more table is evaluated, not linear."""

    def __init__(self, network: PaperCostNetwork) -> None:
        self.heads = [mlp_arrays(head) for head in network.heads]
        self.latent_size = network.latent_size

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardCosts`; the heads decide what an empty device costs."""
        nothing = np.zeros((1, self.latent_size), np.float32)
        forward, backward, _ = self.compute(nothing)
        shape = (batch, num_devices)
        return Loads(
            np.zeros((*shape, self.latent_size), np.float32),
            np.full(shape, forward + backward, np.float32),
            np.full(shape, self._comm(nothing), np.float32),
            np.zeros((*shape, 0), np.float32),
            np.float32(0),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardCosts`."""
        forward, backward = (run_mlp(self.heads[i], sums)[:, 0] for i in (0, 2))
        return forward, backward, np.zeros((len(sums), 0), np.float32)

    def after(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """See `ShardCosts`."""
        sums = loads.sums + latent[:, None, :]
        return run_mlp(self.heads[0], sums)[..., 0] + run_mlp(self.heads[2], sums)[..., 0], self._comm(sums)

    def shard_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """See `ShardCosts`."""
        del loads
        return self._comm(sums)

    def exchange(self, sums: Array) -> Exchange:
        """See `ShardCosts`; the paper's head knows nothing of other devices."""
        return Exchange(self._comm(sums), np.zeros(len(sums), np.float32), 0.0, 0.0)

    def table_width(self, latents: Array) -> Array:
        """See `ShardCosts`; nothing is shared."""
        return np.zeros(len(latents), np.float32)

    def _comm(self, sums: Array) -> Array:
        comm: Array = 2 * run_mlp(self.heads[1], sums)[..., 0]
        return comm


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


def shard_costs(network: CostNetwork) -> ShardCosts:
    """The fast form of `network`.

    Raises:
        TypeError: for a network of another kind.
    """
    if isinstance(network, StructuredCostNetwork):
        return StructuredShardCosts(network)
    if isinstance(network, PaperCostNetwork):
        return PaperShardCosts(network)
    raise TypeError(f"{type(network).__name__} has no incremental form; add one to shard_costs.py")
