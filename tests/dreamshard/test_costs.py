"""Milliseconds by name."""

import pytest
import torch

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.placement import Placement
from tests.helpers.samples import sample_of
from tests.helpers.tables import task_of


def test_the_slowest_device_decides_not_the_slowest_phases():
    phases_ms = torch.tensor([[4.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 3.0]])
    costs = DeviceCosts.from_phases(phases_ms)
    assert (costs.device_ms().tolist(), float(costs.overall_ms())) == ([6.0, 5.0], 6.0)
    assert [getattr(costs, f"{phase}_ms").tolist() for phase in PHASES] == phases_ms.T.tolist()
    assert torch.equal(costs.phases_ms(), phases_ms)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_sample_that_is_no_time_is_refused(wrong):
    task = task_of([1, 1], num_devices=2, room_rows=10)
    with pytest.raises(ValueError, match="by hand"):
        sample_of(task, Placement.whole(torch.tensor([0, 1]), 2), [1.0, wrong])
