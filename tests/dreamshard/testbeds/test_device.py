"""Statistics of repeats, the memory of weights, and the input of an operator."""

import pytest
import torch

from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device, medians, slowest_spread
from dreamshard.testbeds.operators import build_operator, join_lookups
from dreamshard.workloads import Lookups
from tests.helpers.lookups import EvenLookups


def test_an_even_number_of_repeats_has_its_middle_as_median():
    assert medians(torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 6.0], [2.0, 6.0]])).tolist() == [2.5, 5.5]


def test_the_spread_is_that_of_the_device_with_the_slowest_medians():
    steady = torch.tensor([[4.0, 6.0]] * 5)  # [R, P] slowest by its medians, 10 ms
    noisy = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [40.0, 1.0], [50.0, 1.0]])  # slowest in two passes
    timed = torch.stack([steady, noisy], dim=1)  # [R, D, P]
    assert slowest_spread(timed) == 0
    assert slowest_spread(timed[:, 1:]) == pytest.approx(38)


def device(batch=64) -> Device:
    return Device(TestbedSetup(num_devices=1, batch_size=batch, lookups=EvenLookups(64)), torch.device("cpu"))


def test_weights_of_operators_in_use_together_lie_side_by_side_and_are_no_zeros():
    place = device()
    place.weights([40])
    first, second = place.weights([800, 4000])
    assert (first != 0).any()
    assert first.view(torch.float32).isfinite().all()
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all()
    assert (place.weights([40])[0] == 1).all()


def test_an_operator_takes_its_weights_from_the_memory():
    [memory] = device().weights([20 * 8 * 2])
    operator = build_operator([(20, 8)], "fp16", "sgd", memory)
    assert operator.weights_host.data_ptr() == memory.data_ptr()
    assert operator.split_embedding_weights()[0].shape == (20, 8)


def test_lookups_are_laid_out_table_after_table():
    tables = [([0, 1, 2], [0, 1, 3]), ([5, 5], [0, 2, 2])]
    joined = join_lookups([Lookups(torch.tensor(indices), torch.tensor(offsets)) for indices, offsets in tables])
    assert joined.indices.tolist() == [0, 1, 2, 5, 5]
    assert joined.offsets.tolist() == [0, 1, 3, 5, 5]
    with pytest.raises(ValueError, match="of 64 samples cannot fill a batch of 65"):
        device(batch=65).read("a", 50)
