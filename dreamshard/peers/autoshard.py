"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

A policy gives tables to devices one after another. It sees each device as the sum of its tables' latents and its
predicted compute, beside the table to be placed; an LSTM that all devices share carries that through the steps and
scores them, so any number of tables and devices will do. It balances compute: communication is no part of its cost.

What differs from the paper (arXiv 2208.06399): costs are those of the cost network that DreamShard has trained, of
which only forward and backward compute are used, instead of a model trained beside the policy; the reward is minus the
predicted compute of the slowest device, not a measured one; the policy is improved by REINFORCE with the mean of the
placements sampled together as baseline, where theirs is an actor-critic with V-trace over many processes.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.features import FEATURES, Normaliser
from dreamshard.cost_model.networks import CostNetwork, mlp
from dreamshard.costs import PHASES
from dreamshard.peers.lstm_policies import PeerTraining, RecurrentPlacer, RecurrentPolicy, Walk, improve
from dreamshard.policy.mdp import Episodes
from dreamshard.tasks import PlacementTask

_LATENT, _HIDDEN = 32, 64
_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


class AutoShardPolicy(RecurrentPolicy):
    """Table MLP, sum per device, an LSTM over the steps, one linear layer to a score per device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mlp((len(FEATURES), 128, _LATENT))
        self.cell = nn.LSTMCell(2 * _LATENT + 2, _HIDDEN)
        self.score = nn.Linear(_HIDDEN, 1)

    def begin(self, episodes: Episodes) -> Walk:
        """Devices are empty."""
        return _AutoShardWalk(self, episodes)


class _AutoShardWalk:
    """The LSTM's state and what each device holds."""

    def __init__(self, policy: AutoShardPolicy, episodes: Episodes) -> None:
        batch, num_tables = episodes.order.shape
        self.policy, self.num_devices = policy, episodes.num_devices
        self.encoded = policy.table(episodes.features.clamp(-10, 10))  # [B, T, L]
        self.share = self.num_devices / num_tables
        self.sums = torch.zeros(batch, self.num_devices, _LATENT)
        blank = torch.zeros(batch * self.num_devices, _HIDDEN)
        self.state = blank, blank

    def logits(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        table = self.encoded[:, t, None, :].expand(-1, self.num_devices, -1)  # [B, D, L]
        seen = torch.cat([self.sums * self.share, table, held[..., None], after[..., None]], dim=-1)
        self.state = self.policy.cell(seen.flatten(0, 1), self.state)
        scores: Tensor = self.policy.score(self.state[0]).reshape(held.shape)
        return scores

    def took(self, t: int, device: Int[Tensor, " B"]) -> None:
        chosen = torch.nn.functional.one_hot(device, self.num_devices).to(self.sums.dtype)  # [B, D]
        self.sums = self.sums + chosen[..., None] * self.encoded[:, t, None, :]


def compute_ms(network: CostNetwork, sums: Float[Tensor, "B D L"]) -> Float[Tensor, " B"]:
    """Predicted forward and backward compute of the device that has most of it."""
    return network.phases_ms(sums)[..., _COMPUTE].sum(dim=-1).max(dim=-1).values


def untrained_autoshard(cost_network: CostNetwork, normaliser: Normaliser, seed: int) -> RecurrentPlacer:
    """The placer before its first update; `seed` draws its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = AutoShardPolicy()
    return RecurrentPlacer("autoshard", policy, cost_network, normaliser)


def train_autoshard(
    cost_network: CostNetwork,
    normaliser: Normaliser,
    tasks: Sequence[PlacementTask],
    seed: int,
    training: PeerTraining | None = None,
) -> RecurrentPlacer:
    """Train across `tasks`, of whatever sizes.

    Raises:
        ValueError: there are no tasks.
    """
    placer = untrained_autoshard(cost_network, normaliser, seed)
    generator = torch.Generator().manual_seed(seed)
    improve(placer.policy, cost_network, normaliser, tasks, compute_ms, training or PeerTraining(), generator)
    return placer
