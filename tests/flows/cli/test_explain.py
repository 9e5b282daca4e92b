import json

import pytest

from tests.helpers.tables import whole_plan

TABLES = "name,rows,dim,pooling_factor\nbusy,100000,64,40\nquiet,100000,64,2\nother,100000,64,20\n"


@pytest.fixture
def explain(in_home, tmp_path):
    """A function that explains a plan of three tables on two devices."""
    (tmp_path / "plan.json").write_text(whole_plan({"busy": 0, "quiet": 0, "other": 1}, 2))
    (tmp_path / "tables.csv").write_text(TABLES)
    return lambda *options: in_home("explain", tmp_path / "plan.json", tmp_path / "tables.csv", *options)


def test_the_slowest_device_comes_first_with_its_slow_tables(explain):
    done = explain("--hardware", "a100")
    assert "2 devices, slowest first" in done.stdout, done.sentence
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert (cells[0][0], "busy" in cells[0][-1]) == ("0", True)
    busy = next(row for row in cells if row[0] == "busy")
    assert (busy[2], busy[3], busy[4][:9]) == ("table_wise", "device 0", "device 1:")
    assert done.stdout.startswith("device 0 is slowest: busy takes ")
    assert "--shown 3 shows all" in explain("--hardware", "a100", "--shown", "1").stdout


def test_programs_get_all_of_it(explain):
    content = json.loads(explain("--hardware", "a100", "--json", "--shown", "1").stdout)
    assert [device["device"] for device in content["devices"]] == [0, 1]
    assert {table["table"] for table in content["tables"]} == {"busy", "quiet", "other"}
    assert content["tables"][0]["next_place"]["sharding"]["where"] == [1]
    assert content["overall_ms"] == max(device["total_ms"] for device in content["devices"])


def test_without_costs_there_is_nothing_to_explain(explain):
    done = explain("--memory-gb", "1", "--placer", "size_greedy")
    assert (done.returncode, "no cost is predicted" in done.sentence) == (1, True)


def test_a_plan_is_explained_in_its_own_setting(explain, in_home, tmp_path):
    setting = ("--hardware", "a100", "--devices", "2", "--optimizer", "adam", "--batch-size", "8192")
    place = ("place", tmp_path / "tables.csv", *setting, "--out")
    assert in_home(*place, tmp_path / "plan.json", "--devices-per-host", "1").returncode == 0
    predicted = json.loads((tmp_path / "plan.json").read_text())["predicted"]["overall_ms"]
    explained = json.loads(explain("--json").stdout)["overall_ms"]
    assert explained == pytest.approx(predicted, abs=1e-3)  # rounded in the file
    kept = in_home(*place, tmp_path / "new.json", "--current", tmp_path / "plan.json")
    assert f"current plan: predicted {predicted:.3f} ms" in kept.notes


def test_clusters_are_compared_by_published_figures(in_home, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: h100\nnetwork_bandwidth: 10 Gbit/s\n")
    clusters = ("what-if", "mlperf-dlrm-dcnv2", "--hardware", f"a100:8,h100:16,{mine}:16,v100:2")
    a100, h100, slow, small = json.loads(in_home(*clusters, "--json").stdout)
    assert (a100["num_hosts"], h100["num_hosts"]) == (1, 2)
    assert h100["forward_compute_ms"] < a100["forward_compute_ms"]
    assert slow["forward_comm_ms"] > 10 * h100["forward_comm_ms"]  # 10 instead of 400 Gbit/s between hosts
    assert 0 < a100["balance"] <= 1
    assert 97 * 2**30 / 8 < a100["largest_memory_bytes"] <= a100["memory_bytes"]
    assert (small["overall_ms"], "97.4 GiB" in small["infeasible"]) == (None, True)
    assert "v100 x2 does not fit: " in " ".join(in_home(*clusters).stdout.split())
