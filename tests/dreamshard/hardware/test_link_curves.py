"""Curves of links: between and beyond the numbers of GPUs that were measured."""

import pytest
import torch

from dreamshard.hardware.links import fit_link_curve

TIMES_US = {2: {1024: 10.0, 2**20: 100.0}, 8: {1024: 20.0, 2**20: 400.0}}


def seconds(curve, sent_bytes: float) -> float:
    return curve.seconds(torch.tensor(sent_bytes, dtype=torch.float64)).item()


def test_between_two_numbers_the_time_is_their_mean_in_logarithms():
    assert seconds(fit_link_curve(TIMES_US, 4), 2**20) == pytest.approx(200e-6)


def test_below_the_smallest_size_it_takes_as_long_and_above_the_largest_it_grows_in_proportion():
    curve = fit_link_curve(TIMES_US, 2)
    assert seconds(curve, 0) == seconds(curve, 1024) == pytest.approx(10e-6)
    assert seconds(curve, 10 * 2**20) == pytest.approx(1e-3)


def test_beyond_the_measured_numbers_latency_grows_by_doubling_and_the_rest_with_the_share_that_leaves():
    found = seconds(fit_link_curve(TIMES_US, 32), 2**20)
    assert found == pytest.approx(400e-6 * (31 / 32) / (7 / 8) + 10e-6)


def test_times_that_fall_are_averaged():
    curve = fit_link_curve({2: {1: 8.0, 2: 2.0, 4: 16.0}}, 2)
    assert seconds(curve, 1) == seconds(curve, 2) == pytest.approx(4e-6)
