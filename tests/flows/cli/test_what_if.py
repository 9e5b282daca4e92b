"""`dreamshard what-if`: the same tables on several clusters."""

import json
from pathlib import Path

import pytest

from tests.flows.commands import dreamshard

MLPERF = Path(__file__).parents[3] / "dreamshard/workloads/data/mlperf-dlrm-dcnv2.csv"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with nothing in it, which needs no training."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def what_if(home, monkeypatch):
    """A function that runs the command on MLPerf's tables."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(home))

    def run(hardware: str, *options: str):
        return dreamshard("what-if", str(MLPERF), "--hardware", hardware, *options)

    return run


def test_mlperfs_model_on_three_clusters_and_a_file_of_ones_own(what_if, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: h100\nnetwork_bandwidth: 10 Gbit/s\n")
    done = what_if(f"a100:8,h100:16,{mine}:16,v100:2", "--json")
    assert done.returncode == 0, done.sentence
    a100, h100, slow, small = json.loads(done.stdout)
    assert (a100["num_hosts"], h100["num_hosts"]) == (1, 2)
    assert h100["forward_compute_ms"] < a100["forward_compute_ms"]
    assert slow["forward_comm_ms"] > 10 * h100["forward_comm_ms"]  # 10 instead of 400 Gbit/s between hosts
    assert 0 < a100["balance"] <= 1
    assert 97 * 2**30 / 8 < a100["largest_memory_bytes"] <= a100["memory_bytes"]
    assert a100["index_exchange_ms"] > 0
    assert small["overall_ms"] is None
    assert "more than" in small["infeasible"]


def test_the_table_says_why_a_cluster_does_not_fit(what_if):
    done = what_if("h100:8,v100:2")
    assert done.returncode == 0, done.sentence
    words = " ".join(done.stdout.split())
    assert "h100 x8" in words
    assert "v100 x2 does not fit: the 26 tables" in words
