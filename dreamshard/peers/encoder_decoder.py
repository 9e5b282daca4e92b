"""The RNN placer: Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017.

A sequence-to-sequence model: an LSTM reads the tables; a second one with attention over what was read emits a device
for each in turn, and is told the device it chose before. Its last layer has one output per device, so it places only
tasks of as many devices as it was trained for. REINFORCE on the cost of the finished placement.

What differs from the paper, which places the operations of one graph: as in DreamShard's evaluation (arXiv 2210.02023,
section 4.1) the sequence is a task's tables with their features, and devices without room are masked. The reward is the
predicted overall cost, not a measured one, so that it learns from the same measurements as DreamShard; its baseline is
the mean over the placements sampled together, not a moving average. It is trained across tasks where there are any
(the paper trains anew for every graph; `dreamshard.peers.TrainedPerTask` does that).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.features import FEATURES, Normaliser
from dreamshard.cost_model.networks import CostNetwork
from dreamshard.peers.lstm_policies import PeerTraining, RecurrentPlacer, RecurrentPolicy, Walk, improve
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episodes
from dreamshard.tasks import PlacementTask

_HIDDEN = 64


class RnnPolicy(RecurrentPolicy):
    """Encoder, attention and decoder for tasks of `num_devices` devices."""

    def __init__(self, num_devices: int) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.encoder = nn.LSTM(len(FEATURES), _HIDDEN, batch_first=True)
        self.device = nn.Embedding(num_devices + 1, _HIDDEN)  # the last one: nothing chosen yet
        self.decoder = nn.LSTMCell(2 * _HIDDEN, _HIDDEN)
        self.attention = nn.Linear(_HIDDEN, _HIDDEN, bias=False)
        self.score = nn.Linear(2 * _HIDDEN, num_devices)

    def begin(self, episodes: Episodes) -> Walk:
        """Reads the tables; raises NoPlacementError for another number of devices."""
        if episodes.num_devices != self.num_devices:
            raise NoPlacementError(
                f"rnn was trained for {self.num_devices} devices and has one output for each, so it cannot place on "
                f"{episodes.num_devices}; train it on tasks of as many devices"
            )
        return _RnnWalk(self, episodes)


class _RnnWalk:
    """The decoder's state."""

    def __init__(self, policy: RnnPolicy, episodes: Episodes) -> None:
        self.policy = policy
        self.read, (hidden, cell) = policy.encoder(episodes.features.clamp(-10, 10))  # [B, T, H]
        self.keys = policy.attention(self.read)  # [B, T, H]
        self.state = hidden[0], cell[0]
        self.last = policy.device.weight[-1].expand(len(episodes.order), -1)  # [B, H]

    def logits(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        del held, after  # it sees no predicted cost
        self.state = self.policy.decoder(torch.cat([self.read[:, t], self.last], dim=-1), self.state)
        hidden = self.state[0]  # [B, H]
        weight = torch.softmax((self.keys @ hidden[:, :, None])[..., 0] / _HIDDEN**0.5, dim=-1)  # [B, T]
        context = (weight[:, None, :] @ self.read)[:, 0]  # [B, H]
        scores: Tensor = self.policy.score(torch.cat([hidden, context], dim=-1))
        return scores

    def took(self, t: int, device: Int[Tensor, " B"]) -> None:
        del t
        self.last = self.policy.device(device)


def overall_ms(network: CostNetwork, sums: Float[Tensor, "B D L"]) -> Float[Tensor, " B"]:
    """Predicted cost of the slowest device, communication included."""
    return network.overall_ms(sums)


def untrained_rnn(cost_network: CostNetwork, normaliser: Normaliser, num_devices: int, seed: int) -> RecurrentPlacer:
    """The placer before its first update; `seed` draws its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = RnnPolicy(num_devices)
    return RecurrentPlacer("rnn", policy, cost_network, normaliser)


def train_rnn(
    cost_network: CostNetwork,
    normaliser: Normaliser,
    tasks: Sequence[PlacementTask],
    seed: int,
    training: PeerTraining | None = None,
) -> RecurrentPlacer:
    """Train across `tasks`, which must agree in their number of devices.

    Raises:
        ValueError: there are no tasks, or they have different numbers of devices.
    """
    counts = sorted({task.num_devices for task in tasks})
    if len(counts) != 1:
        raise ValueError(
            f"rnn has one output per device, so it needs training tasks of one number of devices; got {counts}: "
            "train one for each"
        )
    placer = untrained_rnn(cost_network, normaliser, counts[0], seed)
    generator = torch.Generator().manual_seed(seed)
    improve(placer.policy, cost_network, normaliser, tasks, overall_ms, training or PeerTraining(), generator)
    return placer
