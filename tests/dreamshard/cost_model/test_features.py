"""What the networks see of a table."""

import torch

from dreamshard.cost_model.features import FEATURES, NUM_PAPER_FEATURES, Normaliser, features
from tests.helpers.tables import pool_of, tables_of


def test_the_first_features_are_the_papers_21():
    seen = features(tables_of([100], dim=8, pooling=3.0))[0]
    assert NUM_PAPER_FEATURES == 21
    assert seen[:4].tolist() == [8, 100, 3, 800]
    assert seen[4:21].tolist() == [0, 1, *[0] * 15]
    assert seen.shape == (len(FEATURES),)


def test_a_table_looks_the_same_in_every_task():
    pool = pool_of(12)
    normaliser = Normaliser.fit(pool)
    assert torch.equal(normaliser(pool.select([7, 3]))[1], normaliser(pool)[3])


def test_the_training_pool_has_mean_zero_and_spread_one():
    pool = pool_of(40)
    seen = Normaliser.fit(pool)(pool).double()
    varied = seen.abs().sum(0) > 1e-3
    assert torch.allclose(seen.mean(0), torch.zeros(len(FEATURES), dtype=torch.float64), atol=1e-4)
    assert torch.allclose(seen[:, varied].std(0, correction=0), torch.ones(1, dtype=torch.float64), atol=1e-3)


def test_a_table_nobody_looks_up_and_a_constant_feature_stay_finite():
    pool = tables_of([10, 10], pooling=[0.0, 0.0])
    assert Normaliser.fit(pool)(pool).isfinite().all()
    assert Normaliser.fit(pool_of(12))(pool).isfinite().all()
