import os
from collections.abc import Iterator

import psutil
import pytest

from tests.helpers.launched import Host
from tests.helpers.ports import free_port

pytestmark = pytest.mark.processes


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """What a test starts; ended afterwards."""
    started: list[Host] = []
    yield started
    for host in started:
        host.close()


def torchrun(host: int, port: int, timeout_s: float) -> Host:
    """One of two hosts with two ranks each, on a loopback address of its own."""
    options = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={host}", f"--local-addr=127.0.0.{host + 1}"]
    options += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    program = ["-m", "tests.helpers.launched", "4", str(timeout_s)]
    return Host(["-m", "torch.distributed.run", *options, *program], {"DREAMSHARD_HOST": f"host-{host}"})


def start(hosts: list[Host]) -> Host:
    """Two hosts; returns the first one."""
    port = free_port()
    hosts[:] = [torchrun(0, port, 60.0), torchrun(1, port, 60.0)]
    assert hosts[0].answer() == {"ranks": 4, "pattern": [2, 2]}
    return hosts[0]


@pytest.mark.long
@pytest.mark.torchrun
def test_torchrun_on_two_hosts_measures_until_a_rank_is_killed(hosts):
    first = start(hosts)
    sample = first.ask("none")
    assert sample["hardware"].endswith(f"x{os.cpu_count()}, 4 ranks, 2 hosts")
    assert (sample["devices_per_host"], sample["all_positive"]) == (2, True)
    across = first.ask("exchange")
    assert across["devices_per_host"] == 1
    assert all(ms > 0 for ms in across["ms"])
    assert first.ask("shardings")["all_positive"]

    started = [child for host in hosts for child in psutil.Process(host.process.pid).children(recursive=True)]
    killed = first.ask("kill")
    assert "measuring task failed on rank" in killed["error"]
    assert "on host host-1" in killed["error"]
    assert killed["error"].endswith("; start again")
    assert [host.end()[0] for host in hosts] == [1, 1]
    assert not psutil.wait_procs(started, timeout=30)[1]

    assert start(hosts).ask("none")["all_positive"]
    assert [host.end()[0] for host in hosts] == [0, 0]


def test_a_command_that_torchrun_did_not_start_is_one_sentence(hosts):
    hosts.append(Host(["-m", "flows.cli.ranks", "run", "--recipe", "smoke"], {}))
    code, errors = hosts[0].end()
    assert code == 1
    assert errors.splitlines()[-1].startswith("dreamshard: torchrun did not start several processes")
    assert "Traceback" not in errors
