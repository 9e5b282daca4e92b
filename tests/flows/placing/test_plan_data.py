"""Figures of a plan's page: parts of bars, the list of tables, and moves."""

import pytest

from dreamshard.costs import PHASES
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import steps
from dreamshard.placement import Placement
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from flows.placing.plan_view.view import OTHERS, WAITING, Side, moves_of, parts_of, tables_of
from tests.helpers import tables

A100 = RooflinePlacer(PRESETS["a100"])


def task(num_devices=2):
    return PlacementTask(tables.tables_of([100_000] * 4, 64, [40.0, 10.0, 20.0, 5.0]), num_devices, 2**30)


def side(of, devices, name="new plan", predictor=A100):
    return Side.of(name, of, Placement.whole(devices, of.num_devices), predictor)


def test_parts_of_a_bar_add_up_to_its_device_and_the_largest_comes_first():
    of = task(3)
    parts = parts_of(side(of, [0, 0, 0, 1]), {(1, 0)})
    for d, expected in enumerate(A100.predict(of, Placement.whole([0, 0, 0, 1], 3)).phases_ms().tolist()):
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
    assert first["gib"].sum() == pytest.approx(9 * 1000 * 64 * 4 / 2**30)


def test_the_list_has_every_table_the_dearest_first_and_where_it_was():
    of = task()
    new = side(of, [0, 1, 1, 1])
    listed = tables_of(of.tables, [new, side(of, [0, 1, 0, 1], "plan in use")])
    assert listed["name"].tolist() == ["t0", "t2", "t1", "t3"]
    assert listed["before"].tolist() == ["", "0", "", ""]
    assert listed["whole"].sum() == pytest.approx(new.pairs["whole"].sum())
    assert "before" not in tables_of(of.tables, [new])


def test_moves_have_the_steps_bytes_and_ends():
    of = task()
    before, after = (Placement.whole(devices, 2) for devices in ([0, 1, 0, 1], [0, 1, 1, 1]))
    (step,) = found = steps(of, Shards.of(of, before), after)
    (line,) = moves_of(found).to_dict("records")
    assert (line["table"], line["columns"], line["source"], line["target"]) == ("t2", "0 to 64", "0", "1")
    assert line["mib"] == step.memory_bytes / 2**20
