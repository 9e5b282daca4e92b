"""Figures of a plan's page: parts of bars, the list of tables, and moves."""

from dataclasses import replace

import pytest

from dreamshard.explain import table_shares
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import steps
from dreamshard.placement import Placement
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from flows.reports.plan_view import segments as parts_of
from flows.reports.plan_view.data import PlanView, Side, move_lines, table_columns
from flows.reports.plan_view.segments import OTHERS, REST, segments
from tests.helpers.tables import tables_of

A100 = RooflinePlacer(PRESETS["a100"])


def task(num_devices=2):
    return PlacementTask(tables_of([100_000] * 4, 64, [40.0, 10.0, 20.0, 5.0]), num_devices, 2**30)


def placed(of, devices):
    return Placement.whole(devices, of.num_devices, of.devices_per_host)


def side(of, devices, name="new plan", predictor=A100):
    placement = placed(of, devices)
    return Side.of(name, of, placement, table_shares(of, placement, predictor))


def test_parts_of_a_bar_add_up_to_its_device_and_the_largest_comes_first():
    of = task(3)
    shown = side(of, [0, 0, 0, 1])
    parts = segments(shown, {(1, 0)}, by_cost=True)
    for d, expected in enumerate(A100.predict(of, placed(of, [0, 0, 0, 1])).phases_ms().tolist()):
        assert parts.phases[parts.device == d].sum(axis=0).tolist() == pytest.approx(expected, rel=1e-4)
    assert parts.table.tolist() == [0, 2, 1, 3, REST]  # device 2 has no tables and waits
    assert parts.moved.tolist() == [False, False, True, False, False]
    held = segments(shown, (), by_cost=False)
    assert held.memory_bytes.tolist() == [100_000 * 64 * 4] * 4


def test_small_tables_of_a_crowded_device_are_put_together_but_for_those_that_move(monkeypatch):
    monkeypatch.setattr(parts_of, "_MOST", 2)
    monkeypatch.setattr(parts_of, "_FEWEST", 1)
    shown = side(task(), [0, 0, 0, 1])
    parts = segments(shown, {(1, 0)}, by_cost=True)
    assert parts.table.tolist() == [0, 1, OTHERS, 3]
    assert parts.count.tolist() == [1, 1, 1, 1]
    assert parts.memory_bytes.sum() == 4 * 100_000 * 64 * 4
    assert float(parts.phases.sum()) == pytest.approx(float(shown.shares.device_phases_ms.sum()))


def test_the_list_has_every_table_the_dearest_first_and_where_it_was():
    of = task()
    view = PlanView(title="x", task=of, side=side(of, [0, 1, 1, 1]), before=side(of, [0, 1, 0, 1], "plan in use"))
    columns = table_columns(view).columns
    assert columns["name"] == ["t0", "t2", "t1", "t3"]
    assert columns["before"] == ["", "0", "", ""]
    assert sum(columns["ms"]) == pytest.approx(float(view.side.shares.device_phases_ms.sum()))
    assert sum(columns["gib"]) == pytest.approx(4 * 100_000 * 64 * 4 / 2**30)
    without = table_columns(replace(view, side=side(of, [0, 1, 1, 1], predictor=None), before=None)).columns
    assert "ms" not in without


def test_moves_have_the_steps_bytes_and_ends():
    of = task()
    (step,) = steps(of, Shards.of(of, placed(of, [0, 1, 0, 1])), placed(of, [0, 1, 1, 1]))
    (line,), moved_to, moved_from = move_lines(of, [step], {"t2": 0.25})
    assert (line.table, line.source, line.target, line.stay_ms) == ("t2", "0", "1", 0.25)
    assert line.memory_bytes == step.memory_bytes
    assert (moved_to, moved_from) == ({(2, 1)}, {(2, 0)})
