"""The RNN policy: Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017.

DreamShard's paper compares itself with it (section 4.1). An LSTM encoder reads the tables, in descending order of their
bytes; an LSTM decoder with attention over its outputs emits one device per table, and reads the device it chose last. The
last layer has one output per device, so it places only on as many as it was trained on. It learns by REINFORCE from costs
that the testbed measures; the reward is minus the square root of the cost. The paper measures thousands of placements of one
graph; here training runs across tasks, and measures as many as DreamShard.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dreamshard.cost_model import Normaliser, gradient_step
from dreamshard.cost_model.features import NUM_FEATURES
from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, OrderedPlacer
from dreamshard.policy.mdp import legal_devices, masked, policy_gradient_loss
from dreamshard.search.packing import packed
from dreamshard.shards import allowed_devices
from dreamshard.tasks import PlacementTask

_HIDDEN = 64
_EPISODES = 10  # sampled per update; the last update may have fewer
_LEARNING_RATE = 1e-2  # of Adam; falls linearly to a twentieth
_ENTROPY_WEIGHT = 0.001
_DRAWS_PER_MEASUREMENT = 8  # before too few that fit the devices are an error


class EncoderDecoder(nn.Module):
    """Encoder, attention and decoder for tasks of `num_devices` devices."""

    def __init__(self, num_devices: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(NUM_FEATURES, _HIDDEN, batch_first=True)
        self.device = nn.Embedding(num_devices + 1, _HIDDEN)  # the last one: nothing chosen yet
        self.decoder = nn.LSTMCell(2 * _HIDDEN, _HIDDEN)
        self.attention = nn.Linear(_HIDDEN, _HIDDEN, bias=False)
        self.score = nn.Linear(2 * _HIDDEN, num_devices)


@dataclass(frozen=True)
class RnnPlacer(OrderedPlacer):
    """The trained policy; the same task gets the same sample of it."""

    policy: EncoderDecoder
    normaliser: Normaliser
    seed: int
    name: str = "rnn"

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Packs tables if the sample does not fit."""
        device, *_, fits = sample(self.policy, self.normaliser, task, 1, torch.Generator().manual_seed(self.seed))
        return Placement.whole(device[0] if bool(fits) else packed(task), task.num_devices)


def train_rnn(
    normaliser: Normaliser,
    tasks: Sequence[PlacementTask],
    measure: Callable[[PlacementTask, Placement], CostSample],
    seed: int,
    measurements: int,
) -> RnnPlacer:
    """The policy after `measurements` placements of tasks on equally many devices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = EncoderDecoder(tasks[0].num_devices)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=_LEARNING_RATE)
    measured = drawn = 0
    while measured < measurements:
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * max(1 - measured / measurements, 0.05)
        task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
        count = min(_EPISODES, measurements - measured)
        device, log_prob, entropy, fits = sample(policy, normaliser, task, count, generator)
        drawn += count
        if drawn > _DRAWS_PER_MEASUREMENT * measurements:
            raise NoPlacementError(f"only {measured} of {drawn} placements that rnn sampled fit the devices")
        cost = torch.full((count,), math.inf)
        for episode in fits.nonzero()[:, 0].tolist():
            cost[episode] = measure(task, Placement.whole(device[episode], task.num_devices)).overall_ms
        measured += int(fits.sum())
        known = cost.isfinite()  # a placement that did not fit counts as the most expensive
        if known.any():
            root = torch.where(known, cost, cost[known].max()).sqrt()
            loss = policy_gradient_loss(log_prob, entropy, root, known, _ENTROPY_WEIGHT)
            gradient_step(policy, optimizer, loss, "RNN's policy", max_norm=1.0)
    return RnnPlacer(policy, normaliser, seed)


def sample(
    policy: EncoderDecoder, normaliser: Normaliser, task: PlacementTask, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`count` placements: devices, and log-probabilities and entropies of the choices, `[B, T]`; `[B]` whether each fits."""
    order = torch.argsort(task.table_bytes, descending=True, stable=True)  # [T]
    features = normaliser(task.tables)[order][None].expand(count, -1, -1)  # [B, T, F]
    table_bytes, allowed, room = task.table_bytes[order].tolist(), allowed_devices(task)[order], task.capacity_bytes
    used_bytes, row = torch.zeros(count, task.num_devices, dtype=torch.int64), torch.arange(count)
    encoded, (hidden, cell) = policy.encoder(features.clamp(-10, 10))  # [B, T, H]
    keys, state = policy.attention(encoded), (hidden[0], cell[0])  # [B, T, H], twice [B, H]
    last = policy.device.weight[-1].expand(count, -1)  # [B, H]
    devices, log_probs, entropies = [], [], []
    for t, size in enumerate(table_bytes):
        state = policy.decoder(torch.cat([encoded[:, t], last], dim=-1), state)
        weight = torch.softmax((keys @ state[0][:, :, None])[..., 0] / math.sqrt(_HIDDEN), dim=-1)  # [B, T]
        context = (weight[:, None, :] @ encoded)[:, 0]  # [B, H]
        legal = [legal_devices(used, size, room.numpy(), allowed[t].numpy()) for used in used_bytes.numpy()]
        chances = masked(policy.score(torch.cat([state[0], context], dim=-1)), torch.from_numpy(np.stack(legal)))
        device = torch.multinomial(chances.probs.detach(), 1, generator=generator)[:, 0]
        used_bytes[row, device] += size
        last = policy.device(device)
        devices.append(device)
        log_probs.append(chances.log_prob(device))
        entropies.append(chances.entropy())
    placed = torch.empty(count, len(order), dtype=torch.int64)
    placed[:, order] = torch.stack(devices, dim=1)  # in the task's own order
    fits = (used_bytes <= room).all(dim=1)
    return placed, torch.stack(log_probs, dim=1), torch.stack(entropies, dim=1), fits
