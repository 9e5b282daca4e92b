"""`dreamshard explain`: for people as lines, for programs as JSON."""

import json

import pytest

from tests.flows.commands import dreamshard
from tests.helpers.tables import whole_plan

TABLES = "name,rows,dim,pooling_factor\nbusy,100000,64,40\nquiet,100000,64,2\nother,100000,64,20\n"


@pytest.fixture
def explain(new_home, monkeypatch, tmp_path):
    """A function that explains a plan of three tables on two A100s."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(new_home))
    held = {"busy": 0, "quiet": 0, "other": 1}
    (tmp_path / "plan.json").write_text(whole_plan(held, 2))
    (tmp_path / "tables.csv").write_text(TABLES)

    def run(*options: str):
        plan = ("explain", str(tmp_path / "plan.json"), str(tmp_path / "tables.csv"))
        return dreamshard(*plan, *options)

    return run


def test_the_slowest_device_comes_first_with_the_tables_that_make_it_so(explain):
    done = explain("--hardware", "a100")
    assert done.returncode == 0, done.sentence
    assert "2 devices, slowest first" in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert (cells[0][0], "busy" in cells[0][-1]) == ("0", True)
    busy = next(row for row in cells if row[0] == "busy")
    assert busy[3] == "0"
    assert busy[4].startswith("1: ")


def test_programs_get_all_of_it(explain):
    done = explain("--hardware", "a100", "--json", "--shown", "1")
    assert done.returncode == 0, done.sentence
    content = json.loads(done.stdout)
    assert [device["device"] for device in content["devices"]] == [0, 1]
    assert {table["table"] for table in content["tables"]} == {"busy", "quiet", "other"}
    assert content["tables"][0]["next_place"]["where"] == [1]
    assert content["overall_ms"] == max(device["total_ms"] for device in content["devices"])


def test_without_costs_there_is_nothing_to_explain(explain):
    done = explain("--memory-gb", "1", "--placer", "size_greedy")
    assert done.returncode == 1
    assert "no cost is predicted" in done.sentence
