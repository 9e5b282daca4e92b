import json

import pytest

from dreamshard.hardware.accelerator import PRESETS
from flows.cli.plans import Cluster
from tests.flows.commands import dreamshard

LISTED = "name,rows,dim,pooling_factor\na,2000000,128,20\nb,3000000,64,2\nc,900000,128,40\nd,500000,32,1\n"


@pytest.fixture
def said(tmp_path, monkeypatch):
    """JSON of a command on four tables."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    (tmp_path / "t.csv").write_text(LISTED)

    def run(name: str, *options: str):
        done = dreamshard(name, tmp_path / "t.csv", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    "options",
    [
        ("--sharding", "auto"),
        ("--sharding", "row_wise", "--optimizer", "adam"),
        ("--constraints", "pin: {a: 3}\nmemory_gb: {0: 0}"),
        ("--cache", "--constraints", "cache: {a: 0.1}", "--memory-gb", "2", "--reserve-gb", "0.5"),
    ],
    ids=lambda options: " ".join(options)[:30],
)
def test_a_cluster_costs_what_place_says(said, options):
    (figures,) = said("what-if", "--hardware", "a100:4", *options, "--json")
    plan = said("place", "--devices", "4", "--hardware", "a100", "--placer", "prior", *options)
    assert figures["overall_ms"] == pytest.approx(plan["predicted"]["overall_ms"], abs=1e-6)
    assert figures["sync_ms"] == 0


def test_groups_take_their_share_of_the_batch_and_pay_for_syncing(said):
    at = ("--batch-size", "65536", "--json")
    whole, groups, rarely = (
        said("what-if", "--hardware", hardware, *at, *more)[0]
        for hardware, more in (("h100:16", ()), ("h100:16/8", ()), ("h100:16/8", ("--sync-every", "100")))
    )
    alone = said("place", "--devices", "8", "--hardware", "h100", "--placer", "prior", "--batch-size", "32768")
    assert whole["sync_ms"] == 0 < groups["sync_ms"] == pytest.approx(100 * rarely["sync_ms"])
    assert rarely["overall_ms"] - rarely["sync_ms"] == pytest.approx(alone["predicted"]["overall_ms"], abs=1e-6)


def test_a_sync_sends_all_bytes_twice_over_the_network():
    h100 = PRESETS["h100"]
    cluster = Cluster(called="h100", spec=h100, num_devices=16, group=8)
    least_ms = 1e3 * 2 * (1 / 2) * 2**30 / h100.network_bytes_per_s
    assert least_ms < cluster.sync_ms(2**30) < 2 * least_ms
