import pytest
import torch
from hypothesis import given, strategies as st

from dreamshard.workloads.task_sampling import EMPTY_SPLIT, split_tables
from tests.helpers.tables import pool_of, sample_tasks, tables_of


def draw(pool, seed, count=3, size=2, room=2**30):
    return sample_tasks(pool, count, size, 2, room, torch.Generator().manual_seed(seed))


@given(changes=st.lists(st.sets(st.integers(0, 40), min_size=2), min_size=2, max_size=5), seed=st.integers(0, 2**31))
def test_a_table_keeps_its_half_when_the_pool_changes(changes, seed):
    everything, split = tables_of([10] * 41), EMPTY_SPLIT
    for step, present in enumerate(changes):
        pool = everything.select(sorted(present))  # tables come, go, and come again
        train, test = split_tables(pool, torch.Generator().manual_seed(seed + step), split)
        assert sorted(train.names + test.names) == sorted(pool.names)
        assert abs(len(train) - len(test)) <= (1 if step == 0 else 41)
        assert not set(train.names) & split.test
        assert not set(test.names) & split.train, "what was trained on is never held out"
        split = split.with_tables(train, test)
        assert not split.train & split.test
        assert [half.names for half in split.divide(pool)] == [train.names, test.names]


def test_new_tables_fill_both_sides_evenly_by_the_seed():
    old, pool = tables_of([10] * 20), tables_of([10] * 30)
    earlier = EMPTY_SPLIT.with_tables(*split_tables(old, torch.Generator().manual_seed(0)))
    drawn = [split_tables(pool, torch.Generator().manual_seed(seed), earlier)[0].names for seed in (1, 1, 2)]
    assert [len(names) for names in drawn] == [15, 15, 15]
    assert drawn[0] == drawn[1] != drawn[2]


def test_both_sides_have_heavy_tables():
    pool = tables_of([10] * 40, pooling=[1.0] * 36 + [100.0] * 4)
    for side in split_tables(pool, torch.Generator().manual_seed(0)):
        assert int((side.pooling_factor == 100).sum()) == 2


def test_a_seed_draws_distinct_tasks_of_distinct_tables():
    pool = pool_of(30)
    names = [[task.tables.names for task in draw(pool, seed)] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    tasks = draw(pool, seed=0, size=5)
    assert [task.name for task in tasks] == ["task-000", "task-001", "task-002"]
    assert all(len(set(task.tables.names)) == 5 for task in tasks)
    few = draw(pool_of(4), seed=0, size=2, count=50)
    assert len(few) == len({frozenset(task.tables.names) for task in few}) == 6  # all pairs of four
    with pytest.raises(ValueError):
        draw(pool_of(5), seed=0, size=6)
