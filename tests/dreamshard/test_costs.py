"""Milliseconds by name."""

import pytest
import torch

from dreamshard.costs import PHASES, DeviceCosts, Exchange
from dreamshard.placement import Placement
from tests.helpers.samples import sample_of
from tests.helpers.tables import task_of


def test_the_slowest_device_decides_not_the_slowest_phases():
    costs = DeviceCosts.from_phases(torch.tensor([[4.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 3.0]]))
    assert costs.device_ms().tolist() == [6.0, 5.0]
    assert float(costs.overall_ms()) == 6.0


def test_phases_keep_their_names_through_stacking():
    costs = DeviceCosts.from_phases(torch.arange(8.0).reshape(2, 4))
    assert [getattr(costs, f"{phase}_ms").tolist() for phase in PHASES] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert torch.equal(costs.phases_ms(), torch.arange(8.0).reshape(2, 4))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_sample_that_is_no_time_is_refused(wrong):
    task = task_of([1, 1], num_devices=2, room_rows=10)
    with pytest.raises(ValueError, match="by hand"):
        sample_of(task, Placement.whole(torch.tensor([0, 1]), 2), [1.0, wrong])


@pytest.mark.parametrize("sent_bytes", [[4], [0, 0]])
def test_an_exchange_that_moves_nothing_is_refused(sent_bytes):
    with pytest.raises(ValueError, match="moves nothing"):
        Exchange(sent_bytes=torch.tensor(sent_bytes))
