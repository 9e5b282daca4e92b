import pytest

TABLES = "name,rows,dim,pooling_factor\n" + "".join(f"t{t},100000,64,{5 + t}\n" for t in range(6))
ONE = 100_000 * 64 * 4 / 2**30


@pytest.fixture
def place(place_tables, tmp_path):
    """A function that places six tables for four A100s under the constraints of a file's text."""

    def run(text: str, *options: str):
        path = tmp_path / "constraints.yaml"
        path.write_text(text)
        done, plan = place_tables(TABLES, "--devices", "4", "--hardware", "a100", "--constraints", str(path), *options)
        held = {name: {*table["where"]} for name, table in plan.get("tables", {}).items()}
        return done, plan, held

    return run


def test_all_constraints_of_a_file_hold_in_the_plan(place):
    text = "{pin: {t0: 2}, exclude: {t1: [0, 2]}, exclude_devices: 3, together: [[t2, t3]], apart: [[t4, t5]]}"
    done, plan, held = place(text, "--sharding", "whole")
    assert done.returncode == 0, done.sentence
    assert held["t0"] == {2}
    assert held["t1"] <= {1}
    assert not any(3 in devices for devices in held.values())
    assert held["t2"] == held["t3"]
    assert not held["t4"] & held["t5"]
    assert {table["sharding_type"] for table in plan["tables"].values()} == {"table_wise"}


def test_unequal_memory_and_a_reserve_bound_each_device(place):
    room = [2.1, 2.1, 3.1, 0.05]
    done, plan, _ = place(f"memory_gb: {[(size + 1) * ONE for size in room]}", "--reserve-gb", str(ONE))
    assert done.returncode == 0, done.sentence
    used = [device["memory_bytes"] for device in plan["predicted"]["devices"]]
    assert all(held <= size * ONE * 2**30 for held, size in zip(used, room, strict=True))


REFUSED = {
    "room": (f"memory_gb: {[2.1 * ONE, 2.1 * ONE, 3.1 * ONE, ONE]}", ("--reserve-gb", str(ONE)), "3 of 4 devices with"),
    "pins": ("pin: {t0: 0, t1: 0, t2: 0}", ("--memory-gb", str(2.1 * ONE)), ": t0, t1, t2 of"),
    "rival": ("pin: {t0: 0, t1: 0, t2: 0, t3: 0, t4: 0}", ("--placer", "torchrec_planner"), "which it may not use"),
}


@pytest.mark.parametrize(("text", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(place, text, options, said):
    pytest.importorskip("torchrec")
    done, plan, _ = place(text, *options)
    assert (done.returncode, plan, said in done.sentence) == (1, {}, True), done.sentence


def test_a_column_wise_table_is_split_even_on_one_device(place):
    done, plan, held = place("{exclude_devices: [1, 2, 3], sharding_types: {t1: column_wise}}")
    assert done.returncode == 0, done.sentence
    assert held["t1"] == {0}
    assert len(plan["tables"]["t1"]["columns"]) > 1
