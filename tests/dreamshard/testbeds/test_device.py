"""Statistics of repeats, and the memory of weights."""

import pytest
import torch

from dreamshard.testbeds.device import WeightArena, medians, slowest_spread


def test_an_even_number_of_repeats_has_its_middle_as_median():
    assert medians(torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 6.0], [2.0, 6.0]])).tolist() == [2.5, 5.5]


def test_the_spread_is_that_of_the_device_with_the_slowest_medians():
    steady = torch.tensor([[4.0, 6.0]] * 5)  # [R, P] slowest by its medians, 10 ms
    noisy = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [40.0, 1.0], [50.0, 1.0]])  # slowest in two passes
    timed = torch.stack([steady, noisy], dim=1)  # [R, D, P]
    assert slowest_spread(timed) == 0
    assert slowest_spread(timed[:, 1:]) == pytest.approx(38)


def test_an_arena_grows_for_a_larger_shard_and_holds_no_zeros():
    arena = WeightArena(torch.device("cpu"))
    assert (arena.weights(10, torch.float32) != 0).all()
    assert len(arena.weights(1000, torch.float32)) == 1000
    assert arena.weights(1000, torch.float32).isfinite().all()


def test_operators_in_use_together_have_arenas_side_by_side():
    arena = WeightArena(torch.device("cpu"))
    first, second = (part.weights(200, torch.float32) for part in arena.divided([800, 800]))
    first.fill_(1.0)
    second.fill_(2.0)
    assert (first == 1).all()
    assert arena.num_bytes == 2 * 1024
