"""After `kill -9` of a command nothing that it started is left."""

import os
import socket
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from flows.runtime.ending_with_us import ending_with_us, has_ended

STARTS = """
import os
import socket
import subprocess
from functools import partial
from flows.runtime.ending_with_us import ending_with_us

alone = ending_with_us(partial(subprocess.Popen, ["sleep", "600"]))
family = partial(subprocess.Popen, ["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
ending_with_us(family, leads_group=True)
stubborn = ending_with_us(partial(subprocess.Popen, ["sh", "-c", "trap '' TERM; while :; do sleep 600; done"]))
print("started", flush=True)
input()
"""

SERVER = """
from flows.runtime.environment import prepare
prepare()
from flows.cli.in_process import in_process
with in_process():
    print("started", flush=True)
    input()
"""


def test_processes_end_with_the_one_that_was_killed():
    code = f"import flows.runtime.ending_with_us as own; own.PATIENCE_S = 1\n{STARTS}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        sleeping = [child for child in children if child.name() == "sleep"]
        assert len(sleeping) >= 4
        started = [child for child in children if "read -r whom" not in " ".join(child.cmdline())]
        stubborn = {child for child in started if "trap" in " ".join(child.cmdline())}
        process.kill()
        grandchild = {child for each in stubborn for child in each.children()}  # only the shell itself was watched
        _, left = psutil.wait_procs(set(started) - grandchild, timeout=20)
        for child in grandchild:
            child.kill()
    assert left == []


def test_nobody_watches_a_process_that_has_ended_or_never_began():
    before = set(psutil.Process().children())
    process = ending_with_us(partial(subprocess.Popen, ["true"]))
    process.wait()
    has_ended(process)
    with pytest.raises(FileNotFoundError):
        ending_with_us(partial(subprocess.Popen, ["no-such-program"]))
    assert set(psutil.Process().children()) == before


def test_no_prefect_server_outlives_a_command_that_is_killed_while_it_starts(tmp_path):
    environment = {"PREFECT_HOME": str(tmp_path / "prefect"), "DREAMSHARD_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        servers: list[psutil.Process] = []
        while not servers:
            assert process.poll() is None
            time.sleep(0.02)
            children = psutil.Process(process.pid).children()
            servers = [child for child in children if "temporary_server" in " ".join(child.cmdline())]
        process.kill()
        _, left = psutil.wait_procs(servers, timeout=30)
    assert left == []


def test_a_prefect_server_whose_command_was_killed_before_anyone_watched_it_ends_by_itself(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        arguments = [str(listener.fileno()), str(os.getpid() + 1)]  # not its parent any more
        done = subprocess.run(
            [sys.executable, "-m", "flows.servers.temporary_server", *arguments],
            env={**os.environ, "PREFECT_HOME": str(tmp_path)},
            pass_fds=[listener.fileno()],
            timeout=300,
            check=False,
        )
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())
