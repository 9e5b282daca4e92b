"""DreamShard's networks as its authors' program describes them, in plain torch: the reference that ours must agree with.

The names of weights are those of checkpoints of github.com/daochenzha/dreamshard (`models.py`). Devices are computed one by
one from lists of tables, with one table of zero features on a device without tables.
"""

import torch
from torch import Tensor

from dreamshard.cost_model import PaperCostNetwork
from dreamshard.policy.mdp import PolicyNetwork
from dreamshard.tables import Tables

HEADS = ("forward_fc", "communication_fc", "backward_fc", "overall_fc")
SHAPES = {f"{name}_0": (21, 128) for name in ("table_fc", "rl_table_fc")}
SHAPES |= {f"{name}_1": (128, 32) for name in ("table_fc", "rl_table_fc")}
SHAPES |= {f"{name}_0": (32, 64) for name in HEADS} | {f"{name}_1": (64, 1) for name in HEADS}
SHAPES |= {"cost_fc_0": (3, 64), "cost_fc_1": (64, 32), "policy_net": (64, 1)}


def random_weights(seed: int) -> dict[str, Tensor]:
    """A checkpoint of random weights."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, (inputs, outputs) in SHAPES.items():
        found[f"{name}.weight"] = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
        found[f"{name}.bias"] = torch.randn(outputs, generator=generator)
    return found


def ours(weights: dict[str, Tensor]) -> tuple[PaperCostNetwork, PolicyNetwork]:
    """Our networks with the weights of such a checkpoint."""
    network, policy = PaperCostNetwork(), PolicyNetwork()
    heads = [network.heads[0], network.heads[1], network.heads[2], network.overall]
    pairs = [(network.table.layers, "table_fc"), (policy.table.layers, "rl_table_fc"), (policy.cost, "cost_fc")]
    pairs += list(zip(heads, HEADS, strict=True))
    with torch.no_grad():
        for layers, name in pairs:
            for index, layer in ((0, layers[0]), (1, layers[2])):
                layer.weight.copy_(weights[f"{name}_{index}.weight"])
                layer.bias.copy_(weights[f"{name}_{index}.bias"])
        # theirs sees forward, communication, backward; ours forward, backward, communication
        policy.cost[0].weight.copy_(weights["cost_fc_0.weight"][:, [0, 2, 1]])
        policy.score.weight.copy_(weights["policy_net.weight"])
        policy.score.bias.copy_(weights["policy_net.bias"])
    return network, policy


def published_features(tables: Tables) -> Tensor:
    """`[T, 21]`: dim, rows, pooling factor, size, 17 bins; rows, pooling factor and size as z-scores within the task."""
    columns = [tables.dim.double()]
    for values in (tables.rows.double(), tables.pooling_factor.double(), (tables.rows * tables.dim).double()):
        centred = values - values.sum() / len(values)
        columns.append(centred / ((centred**2).sum() / len(values)).sqrt())
    return torch.cat([torch.stack(columns, dim=1), tables.bins.double()], dim=1).float()


class PublishedDreamShard:
    """Predictions and logits from a checkpoint, device by device."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def heads_ms(self, held: Tensor) -> Tensor:
        """Forward compute, communication and backward compute of a device of tables `[N, 21]`."""
        latent = self._latent("table_fc", held)
        return torch.stack([self._head(name, latent) for name in HEADS[:3]])

    def overall_ms(self, devices: list[Tensor]) -> float:
        """Overall cost of a placement."""
        latents = torch.stack([self._latent("table_fc", held) for held in devices])
        return float(self._head("overall_fc", latents.amax(dim=0)))

    def logit(self, held: Tensor) -> float:
        """The policy's score of a device."""
        costs = self._layer("cost_fc_0", self.heads_ms(held)).relu()
        costs = self._layer("cost_fc_1", costs).relu()
        return float(self._layer("policy_net", torch.cat([self._latent("rl_table_fc", held), costs])))

    def order(self, features: Tensor) -> list[int]:
        """Tables in the order in which they are placed: descending sum of the three heads of each alone."""
        alone = [float(self.heads_ms(features[t : t + 1]).sum()) for t in range(len(features))]
        return sorted(range(len(alone)), key=lambda t: -alone[t])

    def place(self, features: Tensor, table_bytes: list[int], num_devices: int, capacity_bytes: int) -> list[int]:
        """The device of each table by the greedy policy."""
        held: list[list[int]] = [[] for _ in range(num_devices)]
        device = [-1] * len(features)
        for table in self.order(features):
            has_room = [sum(table_bytes[t] for t in on) + table_bytes[table] <= capacity_bytes for on in held]
            logits = [self.logit(features[on]) if fits else -torch.inf for on, fits in zip(held, has_room, strict=True)]
            device[table] = logits.index(max(logits))
            held[device[table]].append(table)
        return device

    def _layer(self, name: str, values: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ values + self.weights[f"{name}.bias"]

    def _head(self, name: str, latent: Tensor) -> Tensor:
        return self._layer(f"{name}_1", self._layer(f"{name}_0", latent).relu())[0]

    def _latent(self, name: str, held: Tensor) -> Tensor:
        """Sum over the device's tables, each with ReLU after both layers."""
        rows = held if len(held) else torch.zeros(1, 21)
        return sum(self._layer(f"{name}_1", self._layer(f"{name}_0", row).relu()).relu() for row in rows)
