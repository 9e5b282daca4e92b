from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError

from dreamshard.costs import PHASES
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask
from flows.forms.options import PlaceOptions
from flows.placing.plan_page import OTHERS, WAITING, Side, html_page, parts_of
from flows.placing.request import check, place
from tests.helpers.tables import tables_of, whole_plan

A100 = RooflinePlacer(PRESETS["a100"])


def side(of, devices):
    return Side.of("new plan", of, Placement.whole(devices, of.num_devices), A100)


def test_parts_of_a_bar_add_up_to_its_device_largest_first():
    of = PlacementTask(tables_of([100_000] * 4, 64, [40.0, 10.0, 20.0, 5.0]), 3, 2**30)
    parts = parts_of(side(of, [0, 0, 0, 1]), {(1, 0)})
    for d, expected in enumerate(A100.predict(of, Placement.whole([0, 0, 0, 1], 3)).phases_ms.tolist()):
        bar = parts[parts["device"] == d]
        assert bar[list(PHASES)].sum().tolist() == pytest.approx(expected, rel=1e-4)
        assert bar["whole"].sum() == pytest.approx(sum(expected), rel=1e-4)
    assert parts["table"].tolist() == [0, 2, 1, 3, WAITING]  # device 2 has no tables and waits
    assert parts["moved"].tolist() == [False, False, True, False, False]
    assert parts["gib"].sum() == pytest.approx(4 * 100_000 * 64 * 4 / 2**30)


def test_small_tables_are_one_part_except_those_that_move():
    of = PlacementTask(tables_of([1000] * 9, 64, 1.0), 2, 2**30)
    parts = parts_of(side(of, [0] * 9), {(8, 0)}, most=2)
    first = parts[parts["device"] == 0]
    assert first["table"].tolist() == [0, 1, 2, 3, 4, 5, OTHERS, 8]
    assert first["gib"].sum() == pytest.approx(9 * 1000 * 64 * 4 / 2**30)


@pytest.mark.parametrize("held", ["", "000", "0011"])  # devices of the current plan; three tables are too many for one
@pytest.mark.parametrize("costs", [{"hardware": "a100"}, {"placer": "size_greedy"}])
def test_a_page_needs_every_name_of_its_template(store, tmp_path, held, costs):
    (tmp_path / "t.csv").write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{t},100000,64,9\n" for t in range(4)))
    (current := tmp_path / "held.json").write_text(whole_plan({f"t{t}": int(d) for t, d in enumerate(held)}, 2))
    sizes = {"devices": 2, "memory_gb": 0.06, "current": str(current) if held else None}
    placed = place(store, check(store, PlaceOptions(tables=str(tmp_path / "t.csv"), **sizes, **costs), print), print)
    page = html_page(placed)
    assert ("Moves: 1 table," in page) == (held == "000")
    assert ("No cost is predicted" in page) == ("milliseconds of a step" not in page) == ("placer" in costs)
    with pytest.raises(UndefinedError):
        html_page(SimpleNamespace(**vars(placed), kept=placed.kept))  # without the tables that move
