import math

import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.placement import Placement
from tests.helpers.samples import sample_of
from tests.helpers.tables import task_of


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_sample_that_is_no_time_is_refused(wrong):
    task = task_of([1, 1], num_devices=2, room_rows=10)
    with pytest.raises(ValueError):
        sample_of(task, Placement.whole(torch.tensor([0, 1]), 2), [1.0, wrong])


def test_of_devices_as_slow_one_will_be_slower_than_predicted():
    phases_ms = torch.tensor([[[4.0, 1, 1, 4]] * 2, [[4.0, 1, 1, 4], [0.0] * 4], [[4.0, 1, 1, 4], [4.0, 1, 1, 2]]])
    both = 10 * (1 + 0.05 / math.sqrt(math.pi))  # the mean of the larger of two normal draws
    costs = DeviceCosts(phases_ms, spread=0.05).overall_ms().tolist()
    assert costs[:2] == pytest.approx([both, 10], rel=1e-3)
    assert 10 < costs[2] < both
    assert DeviceCosts(phases_ms).overall_ms().tolist() == [10, 10, 10]
