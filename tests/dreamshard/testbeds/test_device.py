"""The spread of repeats, the memory of weights, and lookups that do not fill a batch."""

import numpy as np
import pytest
import torch

from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device, slowest_spread
from tests.helpers.lookups import EvenLookups


def test_the_spread_is_the_slowest_devices():
    steady = np.array([[4.0, 6.0]] * 5)  # [R, P] slowest by its medians, 10 ms
    noisy = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [40.0, 1.0], [50.0, 1.0]])  # slowest in two passes
    timed = np.stack([steady, noisy], axis=1)  # [R, D, P]
    assert slowest_spread(timed) == 0
    assert slowest_spread(timed[:, 1:]) == pytest.approx(38)


def device(batch=64) -> Device:
    return Device(TestbedSetup(num_devices=1, batch_size=batch, lookups=EvenLookups(64)), torch.device("cpu"))


def test_weights_of_operators_used_together_are_adjacent():
    place = device()
    place.weights([40])
    first, second = place.weights([800, 4000])
    assert (first != 0).any()
    assert first.view(torch.float32).isfinite().all()
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all()
    assert (place.weights([40])[0] == 1).all()


def test_lookups_of_too_few_samples_are_refused():
    with pytest.raises(ValueError):
        device(batch=65).read("a", 50)
