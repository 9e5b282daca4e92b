import numpy as np
import pytest

from dreamshard.workloads.lookups import bin_counts
from dreamshard.workloads.zipf import draw_ranks, expected_counts, scatter


def test_scattering_gives_every_row_once_even_of_a_huge_table():
    assert sorted(scatter(np.arange(12), 12, np.random.default_rng(0)).tolist()) == list(range(12))
    rows = 5 * 10**10
    found = scatter(np.asarray([0, 1, rows - 2, rows - 1]), rows, np.random.default_rng(0))
    assert len(set(found.tolist())) == 4
    assert 0 <= found.min() <= found.max() < rows


def test_ranks_are_drawn_in_proportion_to_the_power_laws_area():
    ranks = draw_ranks(2, 100_000, np.random.default_rng(0))
    # areas under x ** -1.05: from 1 to 2 and from 1 to 3
    assert (ranks == 0).mean() == pytest.approx((1 - 2**-0.05) / (1 - 3**-0.05), abs=0.005)


def test_expected_counts_agree_with_a_draw():
    rows, lookups = 50_000, 200_000
    drawn = bin_counts(np.unique(draw_ranks(rows, lookups, np.random.default_rng(0)), return_counts=True)[1])
    assert np.asarray(expected_counts(rows, lookups)) == pytest.approx(drawn, rel=0.06, abs=12)
