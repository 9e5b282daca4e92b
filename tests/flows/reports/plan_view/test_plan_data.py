"""Figures of a plan's page: parts of bars, the list of tables, and moves."""

from dataclasses import replace

import pytest

from dreamshard.costs import PHASES
from dreamshard.explain import table_shares
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import steps
from dreamshard.placement import Placement
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from flows.reports.plan_view.view import OTHERS, WAITING, PlanView, Side, moves_of, parts_of, tables_of
from tests.helpers import tables

A100 = RooflinePlacer(PRESETS["a100"])


def task(num_devices=2):
    return PlacementTask(tables.tables_of([100_000] * 4, 64, [40.0, 10.0, 20.0, 5.0]), num_devices, 2**30)


def placed(of, devices):
    return Placement.whole(devices, of.num_devices, of.devices_per_host)


def side(of, devices, name="new plan", predictor=A100):
    placement = placed(of, devices)
    return Side.of(name, of, placement, table_shares(of, placement, predictor))


def test_parts_of_a_bar_add_up_to_its_device_and_the_largest_comes_first():
    of = task(3)
    parts = parts_of(side(of, [0, 0, 0, 1]), {(1, 0)})
    for d, expected in enumerate(A100.predict(of, placed(of, [0, 0, 0, 1])).phases_ms().tolist()):
        own = parts[parts["device"] == d]
        assert own[list(PHASES)].sum().tolist() == pytest.approx(expected, rel=1e-4)
        assert own["right0"].max() == pytest.approx(sum(expected), rel=1e-4)
    assert parts["table"].tolist() == [0, 2, 1, 3, WAITING]  # device 2 has no tables and waits
    assert parts["moved"].tolist() == [False, False, True, False, False]
    assert parts["left0"].tolist()[:3] == [0.0, *parts["right0"].tolist()[:2]]
    assert parts["gib"].sum() == pytest.approx(4 * 100_000 * 64 * 4 / 2**30)


def test_small_tables_of_a_crowded_device_are_one_part_except_those_that_move():
    of = PlacementTask(tables.tables_of([1000] * 9, 64, 1.0), 2, 2**30)
    parts = parts_of(side(of, [0] * 9), {(8, 0)}, most=2)
    first = parts[parts["device"] == 0]
    assert first["table"].tolist() == [0, 1, 2, 3, 4, 5, OTHERS, 8]
    assert first["count"].tolist() == [1] * 6 + [2, 1]
    assert first["gib"].sum() == pytest.approx(9 * 1000 * 64 * 4 / 2**30)


def test_the_list_has_every_table_the_dearest_first_and_where_it_was():
    of = task()
    view = PlanView(title="x", task=of, side=side(of, [0, 1, 1, 1]), before=side(of, [0, 1, 0, 1], "plan in use"))
    listed = tables_of(view)
    assert listed["name"].tolist() == ["t0", "t2", "t1", "t3"]
    assert listed["before"].tolist() == ["", "0", "", ""]
    assert listed["ms"].sum() == pytest.approx(float(view.side.shares.device_phases_ms.sum()))
    without = tables_of(replace(view, side=side(of, [0, 1, 1, 1], predictor=None), before=None))
    assert "ms" not in without


def test_moves_have_the_steps_bytes_and_ends():
    of = task()
    (step,) = steps(of, Shards.of(of, placed(of, [0, 1, 0, 1])), placed(of, [0, 1, 1, 1]))
    view = PlanView(title="x", task=of, side=side(of, [0, 1, 1, 1]), steps=(step,), stay_ms={"t2": 0.25})
    (line,) = moves_of(view).to_dict("records")
    assert (line["table"], line["part"], line["source"], line["target"], line["stay"]) == ("t2", "all", "0", "1", 0.25)
    assert line["mib"] == step.memory_bytes / 2**20
    assert view.moved() == ({(2, 1)}, {(2, 0)})
