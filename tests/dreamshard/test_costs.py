"""What is no measured time."""

import pytest
import torch

from dreamshard.placement import Placement
from tests.helpers.samples import sample_of
from tests.helpers.tables import task_of


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_sample_that_is_no_time_is_refused(wrong, messages):
    task = task_of([1, 1], num_devices=2, room_rows=10)
    with messages(ValueError):
        sample_of(task, Placement.whole(torch.tensor([0, 1]), 2), [1.0, wrong])
