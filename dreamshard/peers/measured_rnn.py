"""The `rnn` placer (Mirhoseini et al., ICML 2017): the policy of `encoder_decoder.py`, trained on measured costs.

Nothing is predicted: the policy sees the features of the tables, places them, and learns from what the placements cost on
the testbed. So hardware limits its training. It measures `measurements` placements, by default 100, as many as a DreamShard
training; the two are then compared at an equal expense of hardware, where the paper's policy had thousands.

Each update samples placements of one training task, measures them, and takes one step. The reward is minus the square root
of the cost, as in the paper. Tables come in descending order of their bytes, so that devices seldom run out of room.

A placement is one sample of the policy: after so few updates its most probable devices are nearly all the same one, which
costs about twice as much on validation tasks. Other differences from the paper are those of `encoder_decoder.py`, and that
rewards are divided by their spread in the update.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dreamshard.baselines import packed
from dreamshard.cost_model import Normaliser
from dreamshard.costs import CostSample
from dreamshard.peers.encoder_decoder import EncoderDecoder
from dreamshard.peers.lstm_policies import LstmRollout, lstm_rollout
from dreamshard.peers.settings import require_positive
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episodes
from dreamshard.policy.reinforce import gradient_step, policy_gradient_loss
from dreamshard.table_order import in_one_order
from dreamshard.tasks import PlacementTask

Measure = Callable[[PlacementTask, Placement], CostSample]
"""Measures a placement, as `Testbed.measure` does."""

_DRAWS_PER_UPDATE = 8  # of the samples of an update, before too few that fit the devices are an error


@dataclass(frozen=True, kw_only=True)
class RnnTraining:
    """How the policy is trained on measured costs.

    Attributes:
        measurements: placements measured in all.
        episodes: placements measured per update; the last update may have fewer.
        learning_rate: of Adam; falls linearly to a twentieth.
    """

    measurements: int = 100
    episodes: int = 10
    learning_rate: float = 1e-2
    entropy_weight: float = 0.001

    def __post_init__(self) -> None:
        require_positive(self, zero_allowed=("entropy_weight",))


@dataclass(frozen=True)
class MeasuredRnn:
    """The trained policy; the same task gets the same sample of it.

    Attributes:
        num_measurements: placements that it measured.
        seed: of the sample.
    """

    policy: EncoderDecoder
    normaliser: Normaliser
    num_measurements: int
    seed: int = 0
    name: str = "rnn"

    @torch.no_grad()
    @in_one_order
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError for another number of devices, or where neither policy nor packing finds room."""
        generator = torch.Generator().manual_seed(self.seed)
        taken = _sampled(self.policy, episodes_by_size(task, self.normaliser), 1, generator)
        fitting = taken.feasible.nonzero()[:, 0].tolist()
        return Placement(taken.device[fitting[0]] if fitting else packed(task), task.num_devices)


def trained_on_measurements(
    normaliser: Normaliser,
    tasks: Sequence[PlacementTask],
    measure: Measure,
    seed: int,
    training: RnnTraining | None = None,
) -> MeasuredRnn:
    """The policy after `training.measurements` measured placements of `tasks`.

    Args:
        normaliser: of the tables' features.
        tasks: to learn from, all on the same number of devices.
        measure: called once for each sampled placement, all of which fit the devices by the task's count.
        seed: of the weights and of everything that is sampled.

    Raises:
        ValueError: there are no tasks, or they differ in their number of devices.
        NoPlacementError: too few sampled placements fit the devices.
        TrainingDivergedError: the loss is not finite.
    """
    settings = training or RnnTraining()
    policy = untrained_rnn(tasks, seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    measured = 0
    while measured < settings.measurements:
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * max(1 - measured / settings.measurements, 0.05)
        task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
        wanted = min(settings.episodes, settings.measurements - measured)
        taken = _sampled(policy, episodes_by_size(task, normaliser), wanted, generator)
        fitting = taken.feasible.nonzero()[:wanted, 0].tolist()
        if not fitting:
            raise NoPlacementError(
                f"none of {len(taken.feasible)} placements of {task.name} that rnn sampled fits the devices, so there is "
                "nothing to measure; give the devices more memory"
            )
        cost = torch.full((len(taken.feasible),), math.inf)
        for episode in fitting:
            cost[episode] = measure(task, Placement(taken.device[episode], task.num_devices)).overall_ms
        measured += len(fitting)
        known = cost.isfinite()  # a placement that did not fit when measured counts as the most expensive
        if known.sum() > 1 or (known.any() and not known.all()):
            used = torch.tensor(fitting)
            loss = policy_gradient_loss(
                taken.log_prob[used],
                taken.entropy[used],
                torch.where(known, cost, cost[known].max()).sqrt()[used],
                known[used],
                settings.entropy_weight,
            )
            gradient_step(policy, optimizer, loss, max_norm=1.0)
    return MeasuredRnn(policy, normaliser, measured, seed)


def untrained_rnn(tasks: Sequence[PlacementTask], seed: int) -> EncoderDecoder:
    """The policy for the devices of `tasks` before its first update.

    Raises:
        ValueError: there are no tasks, or they differ in their number of devices.
    """
    if not tasks:
        raise ValueError("there are no tasks to train rnn on, so it would place at random; give at least one")
    counts = sorted({task.num_devices for task in tasks})
    if len(counts) > 1:
        raise ValueError(
            f"rnn has one output per device, so it needs training tasks with one number of devices; got {counts}: train one "
            "placer for each"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderDecoder(counts[0])


def episodes_by_size(task: PlacementTask, normaliser: Normaliser) -> Episodes:
    """One episode in descending bytes, without predicted costs."""
    order = torch.argsort(task.table_bytes, descending=True, stable=True)
    num_tables = len(order)
    return Episodes(
        order[None],
        normaliser(task.tables)[order][None],
        torch.zeros(1, num_tables, 0),
        task.table_bytes[order][None],
        torch.zeros(1, num_tables),
        torch.ones(1),
        task.num_devices,
        task.memory_bytes,
    )


def _sampled(policy: EncoderDecoder, episodes: Episodes, wanted: int, generator: torch.Generator) -> LstmRollout:
    """`wanted` placements, or if some of them do not fit the devices, so many more that some may be left out."""
    taken = lstm_rollout(policy, episodes.repeat(wanted), generator, None)
    if bool(taken.feasible.all()):
        return taken
    return lstm_rollout(policy, episodes.repeat(_DRAWS_PER_UPDATE * wanted), generator, None)
