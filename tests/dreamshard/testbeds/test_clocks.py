"""Statistics of repeats."""

import pytest
import torch

from dreamshard.testbeds.clocks import medians, slowest_spread


def test_an_even_number_of_repeats_has_its_middle_as_median():
    assert medians(torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 6.0], [2.0, 6.0]])).tolist() == [2.5, 5.5]


def test_the_spread_is_that_of_the_device_whose_medians_are_slowest():
    steady = torch.tensor([[4.0, 6.0]] * 5)  # [R, P] slowest by its medians, 10 ms
    noisy = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [40.0, 1.0], [50.0, 1.0]])  # slowest in two passes
    timed = torch.stack([steady, noisy], dim=1)  # [R, D, P]
    assert slowest_spread(timed) == 0
    assert slowest_spread(timed[:, 1:]) == pytest.approx(38)
