"""The algorithm `paper` computes what the authors' program computes (docs/as-published.md lists what differs).

`Published` is that program in plain torch: devices are computed one by one from lists of tables, with one table of zero
features on a device without tables.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dreamshard.constraints import Constraints
from dreamshard.cost_model import CostData, Normaliser, PaperCostNetwork
from dreamshard.policy.mdp import Episode, PolicyNetwork, log_probs, policy_gradient_loss, rollout
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from dreamshard.training import with_algorithm
from tests.helpers.samples import sample_of_phases
from tests.helpers.tables import pool_of
from tests.helpers.trained import TINY, fit_costs, improve_policy, make_placer, start_training

DEVICES = 4
TASK = PlacementTask(pool_of(18), DEVICES, 2**33)
TIGHT = replace(TASK, memory_bytes=int(TASK.table_bytes.sum() / DEVICES + TASK.table_bytes.max() / 2))
PAPER = with_algorithm(TINY, "paper")
SEEDS = pytest.mark.parametrize("seed", range(4))


def published_features(tables: Tables) -> Tensor:
    """`[T, 21]`: dim, rows, pooling factor, size, 17 bins; rows, pooling factor and size as z-scores within the task."""
    columns = [tables.dim.double()]
    for values in (tables.rows.double(), tables.pooling_factor.double(), (tables.rows * tables.dim).double()):
        centred = values - values.sum() / len(values)
        columns.append(centred / ((centred**2).sum() / len(values)).sqrt())
    return torch.cat([torch.stack(columns, dim=1), tables.bins.double()], dim=1).float()


class Published:
    """Predictions and logits of random weights, device by device."""

    @torch.no_grad()
    def __init__(self, seed: int) -> None:
        generator, self.network, self.policy = torch.Generator().manual_seed(seed), PaperCostNetwork(), PolicyNetwork()
        for weight in [*self.network.parameters(), *self.policy.parameters()]:
            weight.copy_(
                torch.randn(weight.shape, generator=generator) / (weight.shape[-1] ** 0.5 if weight.ndim > 1 else 1)
            )

    def heads_ms(self, held: Tensor) -> Tensor:
        """Forward compute, communication and backward compute of a device of tables `[N, 21]`."""
        return torch.cat([two_layers(head, latent(self.network.table.layers, held)) for head in self.network.heads])

    def overall_ms(self, devices: list[Tensor]) -> float:
        """Overall cost of a placement."""
        latents = torch.stack([latent(self.network.table.layers, held) for held in devices])
        return float(two_layers(self.network.overall, latents.amax(dim=0)))

    def logit(self, held: Tensor) -> float:
        """The policy's score of a device; ours sees forward and backward compute, then communication."""
        costs = two_layers(self.policy.cost, self.heads_ms(held)[[0, 2, 1]]).relu()
        return float(self.policy.score(torch.cat([latent(self.policy.table.layers, held), costs])))

    def order(self, features: Tensor) -> list[int]:
        """Tables in the order in which they are placed: descending sum of the three heads of each alone."""
        alone = [float(self.heads_ms(features[t : t + 1]).sum()) for t in range(len(features))]
        return sorted(range(len(alone)), key=lambda t: -alone[t])

    def place(self, features: Tensor, table_bytes: list[int], capacity_bytes: int) -> list[int]:
        """The device of each table by the greedy policy."""
        held: list[list[int]] = [[] for _ in range(DEVICES)]
        device = [-1] * len(features)
        for table in self.order(features):
            has_room = [sum(table_bytes[t] for t in on) + table_bytes[table] <= capacity_bytes for on in held]
            logits = [self.logit(features[on]) if fits else -torch.inf for on, fits in zip(held, has_room, strict=True)]
            device[table] = logits.index(max(logits))
            held[device[table]].append(table)
        return device


def two_layers(layers: torch.nn.Sequential, values: Tensor) -> Tensor:
    first, _, second, *_ = layers
    return second.weight @ (first.weight @ values + first.bias).relu() + second.bias


def latent(layers: torch.nn.Sequential, held: Tensor) -> Tensor:
    """Sum over the device's tables, each with ReLU after both layers."""
    return sum(two_layers(layers, row).relu() for row in (held if len(held) else torch.zeros(1, 21)))


def placement_with_an_empty_device(seed: int) -> Placement:
    return Placement.whole(torch.randint(DEVICES - 1, (18,), generator=torch.Generator().manual_seed(seed)), DEVICES)


def held(placement: Placement) -> list[torch.Tensor]:
    features = published_features(TASK.tables)
    return [features[placement.device == device] for device in range(DEVICES)]


def test_networks_have_the_published_sizes():
    sizes = [tuple(weight.shape) for weight in Published(0).network.parameters() if weight.ndim > 1]
    assert sizes == [(128, 21), (32, 128), *[(64, 32), (1, 64)] * 4]
    sizes = [tuple(weight.shape) for weight in Published(0).policy.parameters() if weight.ndim > 1]
    assert sizes == [(128, 21), (32, 128), (64, 3), (32, 64), (1, 64)]


@SEEDS
@torch.no_grad()
def test_probabilities_are_as_published(seed):
    """The published softmax covers devices without room too."""
    published, features = Published(seed), published_features(TASK.tables)
    episode = Episode.of(TIGHT, published.network, Normaliser.per_task())
    taken = rollout(published.policy, episode, 1, torch.Generator().manual_seed(seed))
    assert not taken.legal.all()
    ours, _ = log_probs(published.policy, episode, taken, masks=False)  # [1, T]
    on: list[list[int]] = [[] for _ in range(DEVICES)]
    for step, (table, device) in enumerate(zip(episode.order.tolist(), taken.actions[0].tolist(), strict=True)):
        logits = torch.tensor([published.logit(features[tables]) for tables in on])
        assert float(ours[0, step]) == pytest.approx(float(logits.log_softmax(0)[device]), rel=1e-3, abs=1e-3)
        on[device].append(table)


@SEEDS
@pytest.mark.parametrize("room", [3.0, 1.3])
@torch.no_grad()
def test_the_placement_is_that_of_the_published_greedy_policy(seed, room):
    table_bytes, published = TASK.table_bytes.tolist(), Published(seed)
    memory_bytes = max(int(room * sum(table_bytes) / DEVICES), max(table_bytes))
    expected = published.place(published_features(TASK.tables), table_bytes, memory_bytes)
    placer = DreamShardPlacer(published.network, published.policy, Normaliser.per_task(), inference="policy")
    assert placer.place(replace(TASK, memory_bytes=memory_bytes)).device.tolist() == expected


@torch.no_grad()
def test_the_loss_is_the_sum_of_four_squared_errors_on_two_draws():
    published, phases = Published(0), torch.rand(3, DEVICES, 4, generator=torch.Generator().manual_seed(0))
    samples = [sample_of_phases(TASK, placement_with_an_empty_device(s), phases[s]) for s in range(3)]
    data, drawn = CostData.of(samples, Normaliser.per_task()), torch.Generator().manual_seed(0)
    placements, devices = torch.randint(3, (3,), generator=drawn), torch.randint(3 * DEVICES, (3,), generator=drawn)
    expected = 0.0
    for s in placements.tolist():
        overall_ms = published.overall_ms(held(samples[s].placement))
        expected += (overall_ms - float(phases[s].sum(-1).max())) ** 2 / 3
    for s, device in (divmod(pair, DEVICES) for pair in devices.tolist()):
        heads = published.heads_ms(held(samples[s].placement)[device])
        expected += float((heads - phases[s, device, [0, 2, 3]]).square().sum()) / 3
    loss = published.network.loss(data, 3, torch.Generator().manual_seed(0))
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_training_is_one_adam_that_keeps_gradients_of_zero():
    """As `zero_grad` left them before torch 2: each network follows its momentum while the other learns."""
    state, samples = start_training(TASK.tables, PAPER, seed=0), []
    network, policy, generator = map(deepcopy, (state.cost_network, state.policy, state.generator.get_state()))
    generator, phases = torch.Generator().set_state(generator), torch.arange(16.0).view(DEVICES, 4)
    adam = torch.optim.Adam([*network.parameters(), *policy.parameters()], lr=PAPER.cost_learning_rate)

    def step(loss):
        adam.zero_grad(set_to_none=False)
        loss.backward()
        adam.step()

    for number in range(PAPER.iterations):
        adam.param_groups[0]["lr"] = PAPER.cost_learning_rate * (1 - number / PAPER.iterations)
        samples.append(sample_of_phases(TIGHT, placement_with_an_empty_device(number), number + phases))
        fit_costs(state, samples)
        improve_policy(state, [TIGHT])
        data = CostData.of(samples, Normaliser.per_task())
        for _ in range(PAPER.cost_steps):
            step(network.loss(data, PAPER.cost_batch, generator))
        for _ in range(PAPER.policy_updates):
            torch.randint(1, (), generator=generator)  # the task
            episode = Episode.of(TIGHT, network, Normaliser.per_task())
            taken = rollout(policy, episode, PAPER.episodes, generator)
            chances = log_probs(policy, episode, taken, masks=False)
            cost_ms = network.overall_ms(taken.loads).detach()
            step(policy_gradient_loss(*chances, cost_ms, taken.feasible, PAPER.entropy_weight))
    for learned, expected in ((state.cost_network, network), (state.policy, policy)):
        for name, weight in learned.named_parameters():
            if name != "score.bias":  # no probability depends on it
                torch.testing.assert_close(weight, expected.get_parameter(name), rtol=0, atol=2e-4)


SEEN = {
    "a reserve": {"reserve_bytes": 2**33 - 126_000_000},
    "unequal devices": {"memory_bytes_of": {0: 2**18, 2: 2**20}},
    "an excluded device": {"memory_bytes_of": {1: 0}},
    "pinned tables": {"pinned": dict.fromkeys(pool_of(14).names[:5], (2,))},
}


@pytest.mark.parametrize("name", SEEN)
def test_the_placer_sees_the_room_and_tables_of_each_device(name):
    placer = make_placer(start_training(pool_of(24), PAPER, seed=0))
    task = PlacementTask(pool_of(14), 3, 2**33, constraints=Constraints(**SEEN[name]))
    assert violation(task, placer.place(replace(task, constraints=Constraints())))
    assert not violation(task, placer.place(task))
    with pytest.raises(NoPlacementError):
        placer.place(PlacementTask(TASK.tables, 2, int(TASK.table_bytes.sum()) // 2 + 1))
