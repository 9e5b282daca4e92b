"""`dreamshard place --current`: what moves, what it gains, and whether it is worth it."""

import json

import pytest

from tests.helpers.tables import whole_plan

HEADER = "name,rows,dim,pooling_factor\n"
ALIKE = HEADER + "".join(f"t{t},100000,64,20\n" for t in range(4))
EIGHT_MB = 100_000 * 64 * 4


@pytest.fixture
def place(place_tables, tmp_path):
    """A function that places a list for two A100s, with a plan in use given as device per table."""

    def run(tables: str, held, *options: str, devices: int = 2):
        current = tmp_path / "current.json"
        current.write_text(whole_plan(held, devices))
        place = ("--devices", str(devices), "--hardware", "a100", "--current", str(current))
        done = place_tables(tables, *place, *options)
        plan = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return done, plan, done.notes

    return run


def devices_of(plan):
    return {name: table["where"][0] for name, table in plan["tables"].items()}


def test_the_same_plan_under_other_names_moves_nothing(place):
    held = {"t0": 1, "t1": 1, "t2": 0, "t3": 0}
    done, plan, notes = place(ALIKE, held)
    assert done.returncode == 0, done.sentence
    assert devices_of(plan) == held
    assert "0 of 4 tables move, 0 GiB in all" in notes
    assert "keep it: no gain is worth its moves" in notes
    assert plan["moves"] == []


def test_one_table_moves_off_the_full_device_and_the_gain_is_said(place):
    done, plan, notes = place(ALIKE, {"t0": 0, "t1": 0, "t2": 0, "t3": 1}, "--steps-until-next", "1e9")
    assert done.returncode == 0, done.sentence
    assert sorted(devices_of(plan).values()) == [0, 0, 1, 1]
    assert "the plan in use: predicted" in notes
    assert "1 of 4 tables move, 0.0238 GiB in all:" in notes
    assert "less for 0.0238 GiB; moving stops training for" in notes
    assert "GiB moved ms gain" in notes
    (step,) = plan["moves"]
    assert (step["kind"], step["source"], step["target"], step["memory_bytes"]) == ("move", 0, 1, EIGHT_MB)


def test_a_price_too_high_keeps_the_plan(place):
    held = {"t0": 0, "t1": 0, "t2": 0, "t3": 1}
    _, plan, notes = place(ALIKE, held, "--steps-until-next", "1", "--move-gb-per-s", "0.001")
    assert devices_of(plan) == held
    assert "weighed over 1 steps until the next change, at 0.001 GB/s" in notes
    assert "keep it" in notes


def test_new_gone_and_resized_tables_are_counted_apart_from_what_moves(place):
    today = HEADER + "t0,100000,64,20\nt1,100000,128,20\nfresh,100000,64,20\n"
    done, plan, notes = place(today, {"t0": 0, "t1": 1, "gone": 1})
    assert done.returncode == 0, done.sentence
    assert "of 1 tables move" in notes
    assert "new: fresh; of another size: t1; gone: gone" in notes
    assert {(step["kind"], step["table"]) for step in plan["moves"]} >= {("load", "fresh"), ("load", "t1")}


def test_a_plan_knows_the_rows_of_its_tables(place_tables, tmp_path):
    plan = tmp_path / "plan.json"
    assert place_tables(ALIKE, "--devices", "2", "--hardware", "a100", "--out", str(plan)).returncode == 0
    grown = ALIKE.replace("t1,100000", "t1,200000")
    done = place_tables(grown, "--devices", "2", "--hardware", "a100", "--current", str(plan))
    assert done.returncode == 0, done.sentence
    assert "of another size: t1" in done.notes
