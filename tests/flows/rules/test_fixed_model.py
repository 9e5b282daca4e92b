import pytest
import torch

from dreamshard.tasks import NoPlacementError, PlacementTask
from flows.stages import MODEL, fixed_tasks, split_tasks, split_to_fit
from tests.helpers.tables import ROW_BYTES, pool_of, tables_of, task_of

ROOMY = 2**34


def drawn(count: int, num_variants: int, seed: int = 0, **more) -> list[PlacementTask]:
    generator = torch.Generator().manual_seed(seed)
    return fixed_tasks(PlacementTask(pool_of(count), 2, ROOMY), num_variants, generator, name="variant", **more)


@pytest.mark.parametrize(("count", "most"), [(3, 1), (5, 1), (26, 5)])
def test_variants_lack_some_tables_and_say_how_many(count, most):
    model, *variants = drawn(count, 6)
    assert (model.name, len(model.tables)) == (MODEL, count)
    assert len({frozenset(task.tables.names) for task in variants}) == len(variants) == min(6, count * most)
    for number, task in enumerate(variants):
        missing = count - len(task.tables)
        assert 1 <= missing <= most
        assert set(task.tables.names) < set(model.tables.names)
        assert task.name == f"variant-{number:03} (-{missing})"


def test_a_model_of_two_tables_has_no_variants():
    assert len(drawn(2, 6)) == 1


def test_the_seed_decides_variants_and_none_is_drawn_twice():
    first, again, other = ([frozenset(task.tables.names) for task in drawn(8, 5, seed)] for seed in (0, 0, 1))
    assert first == again != other
    assert not {frozenset(task.tables.names) for task in drawn(8, 5, used=first)[1:]} & set(first)


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
