"""`dreamshard explain` and `place --explain`: for people as lines, for programs as JSON."""

import json

import pytest
from typer.testing import CliRunner

TABLES = "name,rows,dim,pooling_factor\nbusy,100000,64,40\nquiet,100000,64,2\nother,100000,64,20\n"


@pytest.fixture
def explain(new_home, monkeypatch, tmp_path):
    """A function that explains a plan of three tables on two A100s."""
    from flows.cli.app import app

    monkeypatch.setenv("DREAMSHARD_HOME", str(new_home))
    held = {"busy": 0, "quiet": 0, "other": 1}
    shards = [{"table": name, "device": d, "column_start": 0, "column_end": 64} for name, d in held.items()]
    (tmp_path / "plan.json").write_text(json.dumps({"num_devices": 2, "shards": shards}))
    (tmp_path / "tables.csv").write_text(TABLES)

    def run(*options: str):
        plan = ("explain", str(tmp_path / "plan.json"), str(tmp_path / "tables.csv"))
        return CliRunner().invoke(app, [*plan, *options])

    return run


def test_the_slowest_device_comes_first_with_the_tables_that_make_it_so(explain):
    done = explain("--hardware", "a100")
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert lines[0] == "devices, the slowest first (2 of 2), in ms:"
    assert lines[2].split()[0] == "0"
    assert "busy" in lines[2]
    heads = next(line for line in lines if line.lstrip().startswith("table "))
    assert "next best place" in heads
    busy = lines[lines.index(heads) + 1]
    assert busy.split()[0] == "busy"
    assert "1: " in busy


def test_programs_get_all_of_it(explain):
    done = explain("--hardware", "a100", "--json", "--shown", "1")
    assert done.exit_code == 0, done.exception
    content = json.loads(done.stdout)
    assert [device["device"] for device in content["devices"]] == [0, 1]
    assert {table["table"] for table in content["tables"]} == {"busy", "quiet", "other"}
    assert content["tables"][0]["next_place"]["where"] == [1]
    assert content["overall_ms"] == max(device["total_ms"] for device in content["devices"])


def test_without_costs_there_is_nothing_to_explain(explain):
    done = explain("--memory-gb", "1", "--placer", "size_greedy")
    assert done.exit_code == 1
    assert "no cost is predicted" in str(done.exception)


def test_place_explains_what_it_has_placed(place_tables):
    done = place_tables(TABLES, "--devices", "2", "--hardware", "a100", "--explain")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["num_devices"] == 2
    assert "devices, the slowest first (2 of 2), in ms:" in done.stderr
    assert "next best way to shard" in done.stderr
