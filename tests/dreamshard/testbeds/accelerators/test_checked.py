"""What is said of how far a preset was checked."""

from dataclasses import replace

import pytest

from dreamshard.testbeds.accelerators.checked import agreement, checked
from dreamshard.testbeds.accelerators.specs import A100, H100, RTX2080TI


def test_agreement_is_the_geometric_mean_and_standard_deviation():
    found = agreement([0.5, 2.0])
    assert found.mean == pytest.approx(1.0)
    assert found.spread == pytest.approx(2.0)


def test_a_preset_names_the_measurements_it_was_compared_with():
    assert "on 8 public times" in checked(H100)
    assert "of 63 public times within 15%" in checked(A100)
    assert "no public measurement" in checked(RTX2080TI)


def test_own_figures_are_not_called_checked():
    assert checked(replace(H100, clock_hz=1e9)) == "own figures, not compared with any measurement"
