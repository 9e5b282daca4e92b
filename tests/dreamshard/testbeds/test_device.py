"""Statistics of repeats, the memory of weights, and the input of an operator."""

import pytest
import torch

from dreamshard.testbeds.device import WeightArena, medians, slowest_spread
from dreamshard.testbeds.operators import build_operator, shard_lookups
from dreamshard.workloads import Lookups


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


def test_operators_of_one_arena_lie_in_the_same_memory():
    arena, place = WeightArena(torch.device("cpu")), torch.device("cpu")
    large = build_operator([(20, 4), (20, 8)], "fp32", "sgd", place, arena)
    small = build_operator([(20, 8)], "fp16", "sgd", place, arena)
    assert large.weights_host.data_ptr() == small.weights_host.data_ptr()
    assert large.weights_host.numel() == 20 * 4 + 20 * 8
    assert small.split_embedding_weights()[0].shape == (20, 8)


def test_lookups_are_laid_out_table_after_table_from_the_first_samples():
    tables = [
        Lookups(torch.tensor([0, 1, 2, 0, 19]), torch.tensor([0, 1, 3, 5])),
        Lookups(torch.tensor([5, 5, 19, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 4])),
    ]
    joined = shard_lookups(tables, 2, torch.int64)
    assert joined.indices.tolist() == [0, 1, 2, 5, 5]
    assert joined.offsets.tolist() == [0, 1, 3, 5, 5]
    with pytest.raises(ValueError, match="of 3 samples cannot fill a batch of 4"):
        shard_lookups(tables, 4, torch.int64)
