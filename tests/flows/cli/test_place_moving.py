import pytest

from tests.helpers.tables import whole_plan

HEADER = "name,rows,dim,pooling_factor\n"
ALIKE = HEADER + "".join(f"t{t},100000,64,20\n" for t in range(4))
EIGHT_MB = 100_000 * 64 * 4
A100 = ("--devices", "2", "--hardware", "a100")
FULL = {"t0": 0, "t1": 0, "t2": 0, "t3": 1}


@pytest.fixture
def place(place_tables, tmp_path):
    """A function that places a list for two A100s, with a current plan given as device per table."""

    def run(tables: str, held, *options: str):
        (tmp_path / "current.json").write_text(whole_plan(held, 2))
        done, plan = place_tables(tables, *A100, "--current", tmp_path / "current.json", *options)
        assert done.returncode == 0, done.sentence
        return plan, {name: table["where"][0] for name, table in plan["tables"].items()}, done.notes

    return run


def test_one_table_moves_off_the_full_device(place):
    plan, devices, notes = place(ALIKE, FULL, "--steps-until-next", "1e9")
    assert sorted(devices.values()) == [0, 0, 1, 1]
    (step,) = plan["moves"]
    assert (step["source"], step["target"], step["memory_bytes"]) == (0, 1, EIGHT_MB)
    gain = ("current plan: predicted", "less, moving 0.0238 GiB; training stops for", "GiB moved ms gain")
    assert all(said in notes for said in (*gain, "1 of 4 tables move, 0.0238 GiB in total"))


def test_new_gone_and_resized_tables_are_counted_apart(place):
    today = HEADER + "t0,100000,64,20\nt1,100000,128,20\nfresh,100000,64,20\n"
    plan, _, notes = place(today, {"t0": 0, "t1": 1, "gone": 1})
    assert "of 1 table move" in notes
    assert "0.0715 GiB are loaded, not counted above; new: fresh; resized: t1; removed: gone" in notes
    assert {step["table"] for step in plan["moves"] if step["source"] is None} == {"fresh", "t1"}
