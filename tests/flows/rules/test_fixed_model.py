import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dreamshard.placer import NoPlacementError
from dreamshard.search.packing import packed_by_size
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import ModelTable, WorkloadTable, statistics
from dreamshard.workloads.workload import zipf_lookups
from flows.rules.fixed_model import (
    MODEL,
    Drift,
    draw_drift,
    drifted,
    fixed_tasks,
    is_fixed_model,
    split_tasks,
    split_to_fit,
)
from tests.helpers.tables import ROW_BYTES, pool_of, tables_of, task_of

ROOMY = 2**34
PLENTY = 2**40


def with_drifted(model: Tables, drifts: tuple[Drift, ...]) -> Tables:
    """The pool of a model and drifted tables of the sizes that their names say."""
    parents = [model.names.index(drift.table) for drift in drifts]
    rows = [max(1, round(n * drift.rows)) for n, drift in zip(model.rows[parents].tolist(), drifts, strict=True)]
    pooling = [p * drift.pooling for p, drift in zip(model.pooling_factor[parents].tolist(), drifts, strict=True)]
    names = [each.name for each in drifts]
    return concatenate([model, tables_of(rows, model.dim[parents].tolist(), pooling, names=names)])


def drawn(model: PlacementTask, count: int, seed: int, **more) -> list[PlacementTask]:
    drift = draw_drift(model.tables, seed=seed, most_lookups=PLENTY)
    pool = with_drifted(model.tables, drift)
    return fixed_tasks(model, pool, drift, count, torch.Generator().manual_seed(seed), name="variant", **more)


@pytest.mark.parametrize("count", [2, 5, 26])
def test_variants_follow_the_model_and_are_named_by_changes(count):
    model = PlacementTask(pool_of(count), 2, ROOMY)
    own, tasks = set(model.tables.names), drawn(model, 6, seed=1)
    assert (tasks[0].name, tasks[0].tables.names) == (MODEL, model.tables.names)
    assert is_fixed_model(tasks)
    assert len({frozenset(task.tables.names) for task in tasks}) == len(tasks) > 2
    for number, task in enumerate(tasks[1:]):
        assert packed_by_size(task) is not None
        factors = {name: float(name.split("rows x")[1][:4]) for name in task.tables.names if name not in own}
        added = [name for name, factor in factors.items() if factor < 1]  # the model's own tables only grow
        removed = count - len(task.tables) + len(added)
        assert {name.split(" (")[0] for name in task.tables.names if name not in added} <= own
        assert task.name == f"variant-{number:03} (+{len(added)} -{removed} ~{len(factors) - len(added)})"


def test_the_seed_decides_variants_and_none_is_drawn_twice():
    model = PlacementTask(pool_of(8), 2, ROOMY)
    first, again, other = ([frozenset(task.tables.names) for task in drawn(model, 5, seed=seed)] for seed in (0, 0, 1))
    assert first == again != other
    assert not {frozenset(task.tables.names) for task in drawn(model, 5, seed=0, used=first)[1:]} & set(first)


def test_variants_that_outgrow_the_devices_are_not_drawn():
    tight = PlacementTask(tables_of([100] * 6), 2, 300 * ROW_BYTES)  # full with the model alone
    tasks = drawn(tight, 8, seed=0)
    assert tasks[0].tables.names == tight.tables.names
    assert all(int(task.table_bytes.sum()) <= 600 * ROW_BYTES for task in tasks)


def test_a_table_larger_than_a_device_gets_the_fewest_shards():
    split = split_to_fit(PlacementTask(tables_of([100, 10], [16, 4]), 2, 250 * ROW_BYTES))
    assert split.tables.labels == ["t0[0:8]", "t0[8:16]", "t1"]
    assert split_to_fit(task_of([5, 5], 2, 10)).tables.names == ("t0", "t1"), "tables that fit stay whole"
    with pytest.raises(NoPlacementError):
        split_to_fit(task_of([6, 6, 6], 2, 10))


def test_busy_tables_are_also_trained_on_split_by_columns():
    model = PlacementTask(tables_of([100] * 6, 64, [50.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 4, ROOMY, name=MODEL)
    tasks = split_tasks(model, 20, torch.Generator().manual_seed(0))
    assert len(tasks) > 10
    assert len({tuple(task.tables.labels) for task in tasks}) > 1
    for task in tasks:
        assert set(task.tables.names) == set(model.tables.names)
        assert {name for name in task.tables.names if task.tables.names.count(name) > 1} == {"t0"}
        assert int(task.tables.dim.min()) >= 16


CLICKS = WorkloadTable("clicks", 5000, 16, zipf_lookups(ModelTable("clicks", 5000, 16, 6.0), 512, 0))


@given(rows=st.floats(0.1, 3), pooling=st.floats(0.1, 3))
def test_drifted_lookups_stay_inside_the_table(rows, pooling):
    found = drifted(CLICKS, Drift(table="clicks", rows=rows, pooling=pooling))
    assert found.rows == max(1, round(5000 * rows))
    assert 0 <= int(found.lookups.indices.min()) <= int(found.lookups.indices.max()) < found.rows
    assert float(statistics(found).pooling_factor[0]) == pytest.approx(6 * pooling, rel=0.01, abs=0.01)
    assert found.lookups.batch_size == 512
    assert int(found.lookups.offsets[-1]) == len(found.lookups.indices)


def test_one_lookup_per_sample_stays_one_and_tables_only_grow():
    pool = pool_of(60)
    found = [each for each in draw_drift(pool, seed=3, most_lookups=PLENTY) if not each.is_added]
    factors = dict(zip(pool.names, pool.pooling_factor.tolist(), strict=True))
    assert [each.table for each in found] == list(pool.names)
    assert all(1.0 <= each.rows <= 1.3 for each in found)
    assert all(each.pooling == 1.0 for each in found if factors[each.table] <= 1)
    moved = [abs(each.pooling - 1) for each in found if factors[each.table] > 1]
    assert 0.08 < float(np.median(moved)) < 0.15, "about half pass the 10 % at which a retraining starts"


def test_no_more_lookups_are_derived_than_allowed():
    pool = pool_of(40)
    some = int(pool.lookups.sum()) // 4
    drift = draw_drift(pool, seed=0, most_lookups=some)
    for found in ([each for each in drift if each.is_added == is_added] for is_added in (False, True)):
        derived = sum(int(pool.named([each.table]).lookups[0]) * each.pooling for each in found)
        assert 0 < derived <= some + len(found)
