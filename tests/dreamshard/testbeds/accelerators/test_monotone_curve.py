"""Curves that never fall."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import interpolate, optimize

from dreamshard.testbeds.accelerators.monotone_curve import MonotoneCurve, nearest_rising

X = torch.tensor([0.0, 1.0, 2.5, 4.0, 7.0], dtype=torch.float64)
Y = torch.tensor([0.0, 0.0, 1.0, 4.0, 4.5], dtype=torch.float64)


def test_the_curve_passes_through_its_points_and_never_falls():
    curve = MonotoneCurve.through(X, Y)
    torch.testing.assert_close(curve.at(X), Y)
    assert (curve.at(torch.linspace(0, 7, 500, dtype=torch.float64)).diff() >= -1e-12).all()


def test_between_inner_points_it_is_scipys_monotone_interpolation():
    inside = torch.linspace(1.0, 4.0, 50, dtype=torch.float64)
    torch.testing.assert_close(
        MonotoneCurve.through(X, Y).at(inside), torch.from_numpy(interpolate.PchipInterpolator(X, Y)(inside))
    )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_the_nearest_rising_values_are_those_of_least_squares(values):
    expected = optimize.isotonic_regression(values).x
    torch.testing.assert_close(nearest_rising(torch.tensor(values, dtype=torch.float64)), torch.from_numpy(expected))
