"""`dreamshard place --constraints`: what a person asks for holds in the plan, or is refused with the reason."""

import json

import pytest

TABLES = "name,rows,dim,pooling_factor\n" + "".join(f"t{t},100000,64,{5 + t}\n" for t in range(6))


@pytest.fixture
def place(place_tables, tmp_path):
    """A function that places six tables for four A100s under the constraints of a file's text."""

    def run(text: str, *options: str):
        path = tmp_path / "constraints.yaml"
        path.write_text(text)
        done = place_tables(TABLES, "--devices", "4", "--hardware", "a100", "--constraints", str(path), *options)
        plan = json.loads(done.stdout) if done.stdout.startswith("{") else {"tables": {}}
        held = {name: {*table["where"]} for name, table in plan["tables"].items()}
        return done, plan, held

    return run


def test_all_constraints_of_a_file_hold_in_the_plan(place):
    text = "{pin: {t0: 2}, exclude: {t1: [0, 2]}, exclude_devices: 3, together: [[t2, t3]], apart: [[t4, t5]]}"
    done, _, held = place(text)
    assert done.returncode == 0, done.sentence
    assert held["t0"] == {2}
    assert held["t1"] <= {1}
    assert not any(3 in devices for devices in held.values())
    assert held["t2"] == held["t3"]
    assert len(held["t2"]) == 1
    assert not held["t4"] & held["t5"]


def test_unequal_memory_and_a_reserve_bound_each_device(place):
    one = 100_000 * 64 * 4 / 2**30
    done, plan, _ = place(f"memory_gb: [{2.1 * one}, {2.1 * one}, {3.1 * one}, {1.1 * one}]", "--reserve-gb", str(one))
    assert done.returncode == 1  # room for 1 + 1 + 2 + 0 of six tables
    assert "devices together" in done.sentence
    done, plan, _ = place(f"memory_gb: [{3.1 * one}, {3.1 * one}, {4.1 * one}, {1.05 * one}]", "--reserve-gb", str(one))
    assert done.returncode == 0, done.sentence
    room = [int(size * one * 2**30) for size in (2.1, 2.1, 3.1, 0.05)]
    assert all(device["memory_bytes"] <= most for device, most in zip(plan["predicted"]["devices"], room, strict=True))


def test_ways_to_shard_are_those_that_are_allowed(place):
    done, plan, _ = place("", "--sharding", "whole")
    assert done.returncode == 0, done.sentence
    assert {table["sharding_type"] for table in plan["tables"].values()} == {"table_wise"}
    done, _, _ = place("", "--sharding", "diagonal")
    assert done.returncode == 1
    assert "'diagonal' names no way to shard" in done.sentence


def test_a_rival_whose_placement_breaks_a_constraint_says_which(place):
    pytest.importorskip("torchrec")
    done, _, _ = place("pin: {t0: 0, t1: 0, t2: 0, t3: 0, t4: 0}", "--placer", "torchrec_planner")
    assert done.returncode == 1
    assert "torchrec_planner" in done.sentence
    assert "which it may not use" in done.sentence


def test_a_table_to_be_split_by_columns_is_split_even_on_one_device(place):
    done, plan, held = place("{exclude_devices: [1, 2, 3], sharding_types: {t1: column_wise}}")
    assert done.returncode == 0, done.sentence
    assert held["t1"] == {0}
    assert len(plan["tables"]["t1"]["columns"]) > 1


def test_a_placement_that_violates_a_constraint_is_not_written(place, monkeypatch):
    from dreamshard.placement import Placement, TableSharding
    from dreamshard.search import RooflinePlacer

    def wrong(_self, task, _budget_ms):
        first = TableSharding("table_wise", where=(0,))
        return Placement((first,) * len(task.tables), task.num_devices, task.num_devices)

    monkeypatch.setattr(RooflinePlacer, "found", wrong)
    done, _, _ = place("pin: {t0: 2}", "--placer", "prior", "--sharding", "auto")
    assert done.returncode == 1
    assert "prior found violates a constraint: table 't0' has a shard on device 0" in done.sentence
