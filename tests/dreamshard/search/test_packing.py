"""Whether tables fit at all."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dreamshard.constraints import Constraints
from dreamshard.search.packing import PlacementLimits, baselines, pack, packed, packed_by_size, packed_columns
from dreamshard.tables import Placement
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from tests.helpers.tables import ROW_BYTES, tables_of, task_of


def exists(task: PlacementTask) -> bool:
    """Whether a legal placement of whole tables exists, by trying all that memory allows."""
    every = np.array(list(product(range(task.num_devices), repeat=len(task.tables))))  # [P, T]
    held = (np.eye(task.num_devices)[every] * task.table_bytes.numpy()[None, :, None]).sum(axis=1)  # [P, D]
    fitting = every[(held <= task.capacity_bytes.numpy()).all(axis=1)]
    return any(not violation(task, Placement.whole(torch.tensor(device), task.num_devices)) for device in fitting)


def is_proved(task: PlacementTask) -> bool:
    """Whether whole tables find no place, and the error says so; False where a legal placement is found."""
    try:
        placement = Placement.whole(packed(task), task.num_devices)
    except NoPlacementError as error:
        if error.is_proved:
            return True
        raise
    assert violation(task, placement) == ""
    return False


def test_what_no_rule_packs_is_packed():
    task = task_of([9, 8, 7, 7, 7, 4, 4, 3, 3], num_devices=2, room_rows=26)
    assert packed_by_size(task) is None, "the premise"
    assert not violation(task, Placement.whole(packed(task), 2))
    for placer in baselines().values():
        assert not violation(task, placer.place(task))


@settings(max_examples=120, deadline=None)
@given(
    rows=st.lists(st.integers(1, 30), min_size=3, max_size=7),
    slack=st.integers(0, 8),
    together=st.sampled_from([(), ("t0", "t1"), ("t1", "t2")]),
    apart=st.sampled_from([(), ("t0", "t2"), ("t0", "t1", "t2")]),
    pinned=st.sampled_from([{}, {"t0": (1,)}, {"t2": (0, 2)}]),
)
def test_a_placement_is_found_exactly_where_one_exists(rows, slack, together, apart, pinned):
    room = max(max(rows), -(-sum(rows) // 3) + slack)
    constraints = Constraints(
        together=tuple(frozenset(group) for group in (together,) if group),
        apart=tuple(frozenset(group) for group in (apart,) if group),
        pinned=pinned,
    )
    try:
        task = PlacementTask(tables_of(rows), 3, room * ROW_BYTES, constraints=constraints)
    except ValueError:
        return  # contradictory, and refused as such
    assert is_proved(task) != exists(task)


def test_columns_are_packed_where_whole_tables_are_not():
    tables = tables_of([100, 100, 100], dim=20)  # five units of 100 rows each: fifteen on two devices of eight
    task = PlacementTask(tables, 2, 800 * ROW_BYTES)
    assert packed_by_size(task) is None, "the premise"
    placement = packed_columns(task)
    assert not violation(task, placement)
    with pytest.raises(NoPlacementError):
        packed_columns(PlacementTask(tables, 2, 750 * ROW_BYTES))
    wide = Constraints(narrowest_columns_of={"t0": 12})
    tables = tables_of([100, 300], dim=[24, 8])  # units: 6 of 100, 2 of 300
    task = PlacementTask(tables, 2, 900 * ROW_BYTES, constraints=wide)
    placement = packed_columns(task)
    assert violation(task, placement) == ""


def limits_of(sizes, room):
    every, shape = np.arange(len(sizes)), (len(sizes), len(room))
    return PlacementLimits(every, every, sizes, room, np.ones(shape, bool), every, np.append(0 * every, 0), every[:0])


def test_real_sizes_that_almost_fill_devices_are_packed():
    generator = np.random.default_rng(0)
    share = generator.lognormal(0, 1.5, (4, 12))
    sizes = np.floor(share / share.sum(axis=1, keepdims=True) * 5 * 2**30).astype(np.int64).ravel()
    room = np.full(4, int(sizes.reshape(4, 12).sum(axis=1).max() * 1.005))
    device, _ = pack(limits_of(sizes, room))
    assert (np.bincount(device, sizes, 4) <= room).all()


def test_more_than_the_search_takes_on_is_not_called_impossible():
    sizes = np.full(300, 10)
    assert pack(limits_of(sizes, np.full(64, 1))) == (None, False)
