"""Tables after their features have drifted: lookups that a testbed can run, of the size that the name says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamshard.workloads import ModelTable, statistics
from dreamshard.workloads.drift import Drift, additions_to, drifted, drifts_of
from dreamshard.workloads.opening import zipf_table
from tests.helpers.tables import pool_of

TABLE = zipf_table(ModelTable("clicks", 5000, 16, 6.0), 512, 0)


def drift(rows: float = 1.0, pooling: float = 1.0) -> Drift:
    return Drift(table="clicks", rows=rows, pooling=pooling)


@given(rows=st.floats(0.1, 3), pooling=st.floats(0.1, 3))
def test_lookups_stay_inside_the_table_and_their_number_is_that_of_the_drift(rows, pooling):
    found = drifted(TABLE, drift(rows, pooling))
    described = statistics(found)  # refuses indices outside the table
    assert found.rows == max(1, round(5000 * rows))
    assert float(described.pooling_factor[0]) == pytest.approx(6 * pooling, rel=0.01, abs=0.01)
    assert found.lookups.batch_size == 512
    assert int(found.lookups.offsets[-1]) == len(found.lookups.indices)


def test_more_rows_are_reused_less_and_fewer_rows_more():
    unique = [int(statistics(drifted(TABLE, drift(rows))).unique_rows[0]) for rows in (0.2, 1.0, 3.0)]
    assert unique[0] < unique[1] < unique[2]


def test_a_table_of_one_lookup_per_sample_keeps_that_one_and_tables_only_grow():
    pool = pool_of(60)
    found = drifts_of(pool, seed=3, most_lookups=2**40)
    factors = dict(zip(pool.names, pool.pooling_factor.tolist(), strict=True))
    assert [each.table for each in found] == list(pool.names)
    assert all(1.0 <= each.rows <= 1.3 for each in found)
    assert all(each.pooling == 1.0 for each in found if factors[each.table] <= 1)
    moved = [abs(each.pooling - 1) for each in found if factors[each.table] > 1]
    assert 0.08 < float(np.median(moved)) < 0.15, "about half pass the 10 % at which a retraining starts"


def test_no_more_lookups_are_derived_than_allowed():
    pool = pool_of(40)
    some = int(pool.lookups.sum()) // 4
    for found in (drifts_of(pool, seed=0, most_lookups=some), additions_to(pool, 40, seed=0, most_lookups=some)):
        derived = sum(int(pool.named([each.table]).lookups[0]) * each.pooling for each in found)
        assert 0 < derived <= some + len(found)
