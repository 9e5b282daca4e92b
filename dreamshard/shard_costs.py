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

from dreamshard.cost_network import CostNetwork, PaperCostNetwork, StructuredCostNetwork

Array = NDArray[np.float32]


@dataclass
class Loads:
    """What devices hold and cost, without communication; `...` is episodes and devices.

    Attributes:
        sums: `[..., L]` latents summed over the device's tables.
        forward_ms: `[...]` forward compute.
        backward_ms: `[...]` backward compute.
        rates: `[..., R]` milliseconds per unit of work that one more table would bring.
    """

    sums: Array
    forward_ms: Array
    backward_ms: Array
    rates: Array


@runtime_checkable
class ShardCosts(Protocol):
    """Incremental costs of shards."""

    def empty(self, batch: int, num_devices: int) -> Loads:
        """`batch` episodes of devices without tables."""
        ...

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """Forward ms `[N]`, backward ms `[N]` and rates `[N, R]` of shards of latents `[N, L]`."""
        ...

    def added_ms(self, loads: Loads, latent: Array) -> Array:
        """`[B, D]` compute of each device once it also holds the table of `latent` `[B, L]`."""
        ...

    def comm_ms(self, sums: Array, others: Array | None = None) -> Array:
        """`[..., D]` both all-to-alls of each device; `others` as in `StructuredCostNetwork.member_phases_ms`."""
        ...

    def table_width(self, latents: Array) -> Array:
        """`[T]` what each table adds to its device's width."""
        ...

    def widest_comm_ms(self, sums: Array, latent: Array) -> Array:
        """`[B, D]` both all-to-alls of each device with the table of `latent` `[B, L]`, if it were the widest then."""
        ...

    def table_comm_ms(self, latent: Array, num_devices: int) -> Array:
        """`[B]` by how much the table of `latent` raises `widest_comm_ms`; 0 where that is not known beforehand."""
        ...

    def exchange(self, sums: Array) -> "Exchange":
        """The same as `comm_ms`, taken apart into what each device causes and what the widest causes for all."""
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


def refresh(costs: ShardCosts, loads: Loads, episode: NDArray[np.int64], device: NDArray[np.int64]) -> None:
    """Evaluate the one device per episode that changed."""
    forward, backward, rates = costs.compute(loads.sums[episode, device])
    loads.forward_ms[episode, device] = forward
    loads.backward_ms[episode, device] = backward
    loads.rates[episode, device] = rates


class StructuredShardCosts:
    """`StructuredCostNetwork`: the mean of its members."""

    def __init__(self, network: StructuredCostNetwork) -> None:
        pairs = 2 * network.members
        self.members, self.pairs = network.members, pairs

        def array(value: torch.Tensor) -> Array:
            return np.ascontiguousarray(value.detach().numpy(), dtype=np.float32)

        self.hidden_weight = array(network.hidden_weight).reshape(pairs, -1, network.hidden)  # [2M, 6, H]
        self.hidden_bias = array(network.hidden_bias).reshape(pairs, 1, network.hidden)
        self.output_weight = array(network.output_weight).reshape(pairs, network.hidden, 1) / network.bound
        self.bound = network.bound
        scale = array(network.scale_ms)
        self.scale = np.tile(scale, network.members) / np.float32(network.members)  # [2M]
        launch = array(torch.nn.functional.softplus(network.launch)).reshape(pairs) * self.scale
        self.launch_forward, self.launch_backward = float(launch[::2].sum()), float(launch[1::2].sum())
        self.comm = array(network.comm_ms).sum(axis=0)  # [4]: latency, own, largest, received

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardCosts`."""
        shape = (batch, num_devices)
        return Loads(
            np.zeros((*shape, 2 * self.pairs + 4), np.float32),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            np.zeros((*shape, self.pairs), np.float32),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardCosts`; shards must not be empty."""
        sums = np.maximum(sums, 0)  # taking a table away leaves rounding behind
        work = sums[:, : self.pairs] + np.float32(1e-6)  # [N, 2M]
        shared = 0.5 * np.log(sums[:, [-1, -4, -3, -2]] + np.float32(1e-3))  # [N, 4] count, distinct, dims, lookups
        shared[:, 0] -= np.float32(1)
        seen = np.empty((self.pairs, len(sums), 6), np.float32)
        seen[..., 0] = (np.float32(0.5) * np.log(work)).T
        seen[..., 1] = (2 * np.sqrt(sums[:, self.pairs : 2 * self.pairs] + np.float32(1e-12)) / work).T
        seen[..., 2:] = shared
        hidden = seen @ self.hidden_weight
        hidden += self.hidden_bias
        np.maximum(hidden, 0, out=hidden)
        correction = np.exp(np.float32(self.bound) * np.tanh((hidden @ self.output_weight)[..., 0].T))  # [N, 2M]
        rates: Array = correction * self.scale
        cost = rates * sums[:, : self.pairs]
        return cost[:, ::2].sum(1) + self.launch_forward, cost[:, 1::2].sum(1) + self.launch_backward, rates

    def added_ms(self, loads: Loads, latent: Array) -> Array:
        """See `ShardCosts`; exact for an empty device."""
        work = latent[:, : self.pairs]  # [B, 2M]
        added = loads.forward_ms + loads.backward_ms + (loads.rates @ work[:, :, None])[..., 0]  # [B, D]
        empty = loads.sums[..., -1] < 0.5
        if empty.any():
            forward, backward, _ = self.compute(latent)
            added = np.where(empty, (forward + backward)[:, None], added)
        return added

    def widest_comm_ms(self, sums: Array, latent: Array) -> Array:
        """See `ShardCosts`."""
        dims = sums[..., 2 * self.pairs + 1] + latent[:, None, 2 * self.pairs + 1]
        comm: Array = self._slope(dims.shape[-1]) * dims + self.comm[0]
        return comm

    def table_comm_ms(self, latent: Array, num_devices: int) -> Array:
        """See `ShardCosts`."""
        comm: Array = self._slope(num_devices) * latent[:, 2 * self.pairs + 1]
        return comm

    def _slope(self, num_devices: int) -> np.float32:
        """Milliseconds per dim of a device that is the widest."""
        _, own, largest, received = self.comm
        return np.float32(((own + largest) * (num_devices - 1) - received) / num_devices)

    def exchange(self, sums: Array) -> Exchange:
        """See `ShardCosts`."""
        dims = sums[:, 2 * self.pairs + 1]
        num_devices = len(dims)
        share = (num_devices - 1) / num_devices
        latency, own, largest, received = (float(value) for value in self.comm)
        own_ms = np.float32(latency) + np.float32(own * share) * dims
        own_ms += np.float32(received / num_devices) * (dims.sum() - dims)
        return Exchange(own_ms, dims, largest * share, own * share - received / num_devices)

    def table_width(self, latents: Array) -> Array:
        """See `ShardCosts`."""
        width: Array = latents[:, 2 * self.pairs + 1]
        return width

    def comm_ms(self, sums: Array, others: Array | None = None) -> Array:
        """See `ShardCosts`."""
        dims = sums[..., 2 * self.pairs + 1]
        beside = dims if others is None else others[..., 2 * self.pairs + 1]
        num_devices = dims.shape[-1]
        share = np.float32((num_devices - 1) / num_devices)
        latency, own, largest, received = self.comm
        top = np.maximum(dims, beside.max(axis=-1, keepdims=True))
        arriving = (beside.sum(axis=-1, keepdims=True) - beside) / np.float32(num_devices)
        comm: Array = latency + (own * share) * dims + (largest * share) * top + received * arriving
        return comm


class PaperShardCosts:
    """`PaperCostNetwork`: three heads on the summed latents; the effect of one more table is evaluated, not linear."""

    def __init__(self, network: PaperCostNetwork) -> None:
        self.heads = [mlp_arrays(head) for head in network.heads]
        self.latent_size = network.latent_size

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardCosts`."""
        loads = Loads(
            np.zeros((batch, num_devices, self.latent_size), np.float32),
            np.zeros((batch, num_devices), np.float32),
            np.zeros((batch, num_devices), np.float32),
            np.zeros((batch, num_devices, 0), np.float32),
        )
        loads.forward_ms[:], loads.backward_ms[:], _ = (
            value.reshape(batch, num_devices, *value.shape[1:])
            for value in self.compute(loads.sums.reshape(-1, self.latent_size))
        )
        return loads

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardCosts`."""
        forward, backward = (run_mlp(self.heads[i], sums)[:, 0] for i in (0, 2))
        return forward, backward, np.zeros((len(sums), 0), np.float32)

    def added_ms(self, loads: Loads, latent: Array) -> Array:
        """See `ShardCosts`."""
        after = loads.sums + latent[:, None, :]
        added: Array = run_mlp(self.heads[0], after)[..., 0] + run_mlp(self.heads[2], after)[..., 0]
        return added

    def widest_comm_ms(self, sums: Array, latent: Array) -> Array:
        """See `ShardCosts`."""
        return self.comm_ms(sums + latent[:, None, :])

    def table_comm_ms(self, latent: Array, num_devices: int) -> Array:
        """See `ShardCosts`; depends on the device."""
        return np.zeros(len(latent), np.float32)

    def exchange(self, sums: Array) -> Exchange:
        """See `ShardCosts`; every device for itself."""
        return Exchange(self.comm_ms(sums), np.zeros(len(sums), np.float32), 0.0, 0.0)

    def table_width(self, latents: Array) -> Array:
        """See `ShardCosts`; nothing is shared."""
        return np.zeros(len(latents), np.float32)

    def comm_ms(self, sums: Array, others: Array | None = None) -> Array:
        """See `ShardCosts`; the paper's head knows nothing of other devices."""
        del others
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
