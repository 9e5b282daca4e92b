"""Ranks on two hosts that a launcher started: what they measure, and what a host's trouble looks like."""

import os
import socket
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
    options = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--node-rank",
        str(host),
        "--local-addr",
        f"127.0.0.{host + 1}",
    ]
    options += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    program = ["-m", "tests.helpers.launched", "4", str(timeout_s)]
    return Host(["-m", "torch.distributed.run", *options, *program], {"DREAMSHARD_HOST": f"host-{host}"})


def plain(rank: int, port: int, program: list[str]) -> Host:
    """One of two hosts with one rank each, from a launcher that only sets variables."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    return Host(program, {**variables, "MASTER_PORT": str(port), "DREAMSHARD_HOST": f"host-{rank}"})


def descendants(host: Host) -> list[psutil.Process]:
    return psutil.Process(host.process.pid).children(recursive=True)


def have_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=30)[1]


@pytest.mark.long
@pytest.mark.torchrun
def test_torchrun_on_two_hosts_measures_and_survives_all_but_the_death_of_a_host(hosts):
    port = free_port()
    hosts += [torchrun(0, port, 30.0), torchrun(1, port, 30.0)]
    first, other = hosts
    assert first.answer() == {"ranks": 4, "pattern": [2, 2]}

    sample = first.ask("none")
    assert sample["hardware"].endswith(f"x{os.cpu_count()}, 4 ranks, 2 hosts")
    assert (sample["devices_per_host"], sample["shape"], sample["all_positive"]) == (2, [4, 4], True)
    across = first.ask("exchange")
    assert across["devices_per_host"] == 1
    assert all(ms > 0 for ms in across["ms"])

    shardings = first.ask("shardings")
    assert shardings == {"devices_per_host": 2, "all_positive": True}

    killed = first.ask("kill")
    assert "measuring task failed on rank 3 of 4 on host host-1 while reading lookups" in killed["error"]
    assert "killed by SIGKILL, as the system does when it runs out of memory" in killed["error"]
    assert "shape" in first.ask("none")  # on new ranks

    first.tell("hang")
    everything = [*descendants(first), *descendants(other)]
    other.die()
    dead = first.answer()
    assert "on host host-1" in dead["error"]
    assert "host host-1 is gone with ranks 2 and 3" in dead["error"]
    assert "All ranks were ended; earlier samples are kept" in dead["error"]
    lost = first.ask("none")
    assert "ranks 2 and 3 of 4 of host host-1 did not join within 10 s" in lost["error"]
    first.tell("fail")
    first.process.wait(60)
    assert have_ended(everything)


def test_a_host_that_is_started_again_joins_again(hosts):
    port = free_port()
    program = ["-m", "tests.helpers.launched", "2", "30"]
    hosts += [plain(0, port, program), plain(1, port, program)]
    assert hosts[0].answer() == {"ranks": 2, "pattern": [1, 1]}
    assert hosts[0].ask("none")["devices_per_host"] == 1
    hosts[1].die()
    hosts.append(plain(1, port, program))
    assert "host host-1 is gone with rank 1" in hosts[0].ask("none")["error"]
    assert hosts[0].ask("none")["shape"] == [2, 4]
    (idle,) = psutil.Process(hosts[2].process.pid).children()
    idle.kill()
    assert "rank 1 of 2 on host host-1 while waiting for work" in hosts[0].ask("none")["error"]
    assert hosts[0].ask("none")["shape"] == [2, 4]
    assert hosts[0].end()[0] == 0
    assert hosts[2].end()[0] == 0


def test_a_host_that_never_comes_is_one_sentence(hosts):
    command = ["-m", "flows.cli.ranks", "--join-timeout", "1", "run", "--recipe", "smoke"]
    hosts.append(plain(0, free_port(), command))
    code, errors = hosts[0].end()
    assert code == 1
    assert errors.splitlines()[-1].startswith(
        "dreamshard: the ranks could not start, since rank 1 failed: rank 1 of 2 did "
    )
    assert "did not join within 1 s; start the launcher on every host" in errors
    assert "Traceback" not in errors


def test_a_port_in_use_is_one_sentence(hosts):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hosts.append(plain(0, port, ["-m", "flows.cli.ranks", "run", "--recipe", "smoke"]))
        option = ["-m", "flows.cli.ranks", "--driver-port", str(port), "run", "--recipe", "smoke"]
        hosts.append(plain(0, free_port(), option))
        for host, words in zip(hosts, ["set MASTER_PORT to another port", "choose another port"], strict=True):
            code, errors = host.end()
            assert code == 1
            assert f"port {port}" in errors
            assert words in errors
            assert "Traceback" not in errors
