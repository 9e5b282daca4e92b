"""The policy that learns from measured costs: what it measures, what it learns, and what it refuses."""

import pytest
import torch

from dreamshard.placer import NoPlacementError, Placer
from dreamshard.rivals import train_rnn
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.samples import sample_of_phases
from tests.helpers.tables import tables_of, task_of
from tests.helpers.trained import learnt, tiny_tasks


class Recording:
    """Measures by a law of the numbers of tables per device, and keeps what it measured."""

    def __init__(self, cost_of=torch.square):
        self.cost_of, self.measured = cost_of, []

    def __call__(self, task, placement):
        self.measured.append((task, placement))
        counts = torch.bincount(placement.device, minlength=task.num_devices).float()
        return sample_of_phases(task, placement, self.cost_of(counts)[:, None].expand(-1, 4))


def test_it_measures_exactly_its_budget_of_legal_placements():
    measure = Recording()
    placer = train_rnn(learnt().normaliser, tiny_tasks(), measure, 0, 13)
    assert len(measure.measured) == placer.num_measurements == 13
    assert all(not violation(task, placement) for task, placement in measure.measured)
    assert isinstance(placer, Placer)


@pytest.mark.slow
def test_it_learns_from_what_is_measured_and_from_nothing_else():
    task = PlacementTask(tables_of([100] * 6, 16), 2, 2**30)
    spread = train_rnn(learnt().normaliser, [task], Recording(), 0, 600).place(task)
    together = Recording(lambda counts: (1 + counts.prod()).expand(len(counts)))
    gathered = train_rnn(learnt().normaliser, [task], together, 0, 600).place(task)
    assert sorted(torch.bincount(spread.device, minlength=2).tolist()) == [3, 3]
    assert sorted(torch.bincount(gathered.device, minlength=2).tolist()) == [0, 6]


def test_a_seed_measures_the_same_and_leaves_torchs_own_alone():
    before = torch.get_rng_state()
    runs = [Recording() for _ in range(3)]
    for measure, seed in zip(runs, (0, 0, 1), strict=True):
        train_rnn(learnt().normaliser, tiny_tasks(), measure, seed, 10)
    first, second, other = ([placement.device.tolist() for _, placement in run.measured] for run in runs)
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), before)


def test_other_or_several_numbers_of_devices_are_refused():
    placer = train_rnn(learnt().normaliser, tiny_tasks(), Recording(), 0, 2)
    with pytest.raises(NoPlacementError, match="trained for 2 devices"):
        placer.place(task_of([2, 2, 2, 2], 4, 8))
    with pytest.raises(ValueError, match=r"\[2, 4\]"):
        train_rnn(learnt().normaliser, [*tiny_tasks(), task_of([2, 2, 2, 2], 4, 8)], Recording(), 0)
