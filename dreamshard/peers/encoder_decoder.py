"""The RNN policy: Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017.

An LSTM encoder reads the tables. An LSTM decoder with attention over the encoder's outputs emits one device per table;
its input includes the device it chose last. The last layer has one output per device, so a trained policy places only
tasks with the number of devices it was trained for.

Two placers have it. `rnn` learns from measured costs, as the paper's does (`measured_rnn.py`). `rnn_predicted`, built here,
learns from the overall cost that DreamShard's cost network predicts, which is much cheaper: thousands of placements, none
of them measured, and no training of its own beyond the measurements of that network.

Differences from the paper, which places the operations of one graph: as in DreamShard's evaluation (arXiv 2210.02023,
section 4.1) the sequence is a task's tables with their features, and devices without room are masked. The baseline of
REINFORCE is the mean over the placements sampled together, not a moving average, since tasks differ in their costs.
Training runs across tasks; the paper trains anew for every graph, as `TrainedPerTask` does.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES
from dreamshard.peers.lstm_policies import DeviceScorer, LstmMethod
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episodes

_HIDDEN = 64


class EncoderDecoder(nn.Module):
    """Encoder, attention and decoder for tasks of `num_devices` devices."""

    def __init__(self, num_devices: int) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.encoder = nn.LSTM(len(FEATURES), _HIDDEN, batch_first=True)
        self.device = nn.Embedding(num_devices + 1, _HIDDEN)  # the last one: nothing chosen yet
        self.decoder = nn.LSTMCell(2 * _HIDDEN, _HIDDEN)
        self.attention = nn.Linear(_HIDDEN, _HIDDEN, bias=False)
        self.score = nn.Linear(2 * _HIDDEN, num_devices)

    def forward(self, episodes: Episodes) -> DeviceScorer:
        """Encode the tables; raises NoPlacementError for another number of devices."""
        if episodes.num_devices != self.num_devices:
            raise NoPlacementError(
                f"rnn was trained for {self.num_devices} devices and has one output for each, so it cannot place on "
                f"{episodes.num_devices}; train it on tasks with that many devices"
            )
        return _Decoding(self, episodes)


class _Decoding:
    """The encoder's outputs and the decoder's state."""

    def __init__(self, policy: EncoderDecoder, episodes: Episodes) -> None:
        self.policy = policy
        self.encoded, (hidden, cell) = policy.encoder(episodes.features.clamp(-10, 10))  # [B, T, H]
        self.keys = policy.attention(self.encoded)  # [B, T, H]
        self.state = hidden[0], cell[0]
        self.last = policy.device.weight[-1].expand(len(episodes.order), -1)  # [B, H]

    def scores(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        del held, after  # this policy sees no predicted cost
        self.state = self.policy.decoder(torch.cat([self.encoded[:, t], self.last], dim=-1), self.state)
        hidden = self.state[0]  # [B, H]
        weight = torch.softmax((self.keys @ hidden[:, :, None])[..., 0] / _HIDDEN**0.5, dim=-1)  # [B, T]
        context = (weight[:, None, :] @ self.encoded)[:, 0]  # [B, H]
        scores: Tensor = self.policy.score(torch.cat([hidden, context], dim=-1))
        return scores

    def place(self, t: int, device: Int[Tensor, " B"]) -> None:
        del t
        self.last = self.policy.device(device)


RNN_PREDICTED = LstmMethod(
    "rnn_predicted", policy=EncoderDecoder, objective=lambda network, sums: network.overall_ms(sums), fixed_devices=True
)
