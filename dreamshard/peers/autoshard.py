"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

A policy gives tables to devices one after another. It sees the table to be placed and, of each device, the sum of its
tables' latents and its predicted compute. One LSTM, shared by all devices, carries this through the steps and scores
the devices, so the policy takes any number of tables and devices. It balances compute and ignores communication.

Differences from the paper (arXiv 2208.06399): costs are the forward and backward compute predicted by DreamShard's cost
network, not those of a model trained beside the policy; the reward is minus the predicted compute of the slowest
device, not a measured one; REINFORCE with the mean of the sampled placements as baseline replaces an actor-critic with
V-trace over many processes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES, CostNetwork, mlp
from dreamshard.costs import PHASES
from dreamshard.peers.lstm_policies import DeviceScorer, LstmMethod
from dreamshard.policy.mdp import Episodes

_LATENT, _HIDDEN = 32, 64
_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


class AutoShardPolicy(nn.Module):
    """Table MLP, sum per device, an LSTM over the steps, one linear layer to a score per device; for any number of them."""

    def __init__(self, num_devices: int) -> None:
        super().__init__()
        del num_devices
        self.table = mlp((len(FEATURES), 128, _LATENT))
        self.cell = nn.LSTMCell(2 * _LATENT + 2, _HIDDEN)
        self.score = nn.Linear(_HIDDEN, 1)

    def forward(self, episodes: Episodes) -> DeviceScorer:
        """Start with empty devices."""
        return _Scorer(self, episodes)


class _Scorer:
    """The LSTM's state and what each device holds."""

    def __init__(self, policy: AutoShardPolicy, episodes: Episodes) -> None:
        batch, num_tables = episodes.order.shape
        self.policy, self.num_devices = policy, episodes.num_devices
        self.encoded = policy.table(episodes.features.clamp(-10, 10))  # [B, T, L]
        self.share = self.num_devices / num_tables
        self.sums = torch.zeros(batch, self.num_devices, _LATENT)
        blank = torch.zeros(batch * self.num_devices, _HIDDEN)
        self.state = blank, blank

    def scores(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        table = self.encoded[:, t, None, :].expand(-1, self.num_devices, -1)  # [B, D, L]
        seen = torch.cat([self.sums * self.share, table, held[..., None], after[..., None]], dim=-1)
        self.state = self.policy.cell(seen.flatten(0, 1), self.state)
        scores: Tensor = self.policy.score(self.state[0]).reshape(held.shape)
        return scores

    def place(self, t: int, device: Int[Tensor, " B"]) -> None:
        chosen = torch.nn.functional.one_hot(device, self.num_devices).to(self.sums.dtype)  # [B, D]
        self.sums = self.sums + chosen[..., None] * self.encoded[:, t, None, :]


def compute_ms(network: CostNetwork, sums: Float[Tensor, "B D L"]) -> Float[Tensor, " B"]:
    """Largest predicted forward and backward compute of any device."""
    return network.phases_ms(sums)[..., _COMPUTE].sum(dim=-1).max(dim=-1).values


AUTOSHARD = LstmMethod("autoshard", policy=AutoShardPolicy, objective=compute_ms)
