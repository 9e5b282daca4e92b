import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows.servers import running

OTHER = """
import subprocess, sys
from pathlib import Path
from flows.servers import running
home = Path(sys.argv[1])
with running.only_one(home):
    child = subprocess.Popen(["sleep", "600"])
    running.record(home, "http://127.0.0.1:4200", "http://127.0.0.1:5000", {"prefect": child.pid})
    print(child.pid, flush=True)
    input()
    child.kill()
    child.wait()
"""


@pytest.fixture
def other(tmp_path: Path):
    """Another process that runs as `up` for the home `tmp_path`, and the process it started."""
    command, pipe = [sys.executable, "-c", OTHER, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        yield process, child
        process.kill()
        with suppress(psutil.NoSuchProcess):
            child.kill()


def test_a_second_up_is_refused_with_the_addresses_of_the_first_until_it_ends(tmp_path: Path, other):
    process, _ = other
    found = running.find(tmp_path)
    assert found is not None
    assert found.alive
    assert (found.pid, found.prefect) == (process.pid, "http://127.0.0.1:4200")
    said = rf"{tmp_path} already \(process {process.pid}, since .*127.0.0.1:4200 .* kill {process.pid}$"
    with pytest.raises(ValueError, match=said), running.only_one(tmp_path):
        pass
    process.communicate("end\n")
    assert running.find(tmp_path) is None
    with running.only_one(tmp_path):
        pass


def test_servers_that_a_killed_up_left_behind_are_named_until_they_end(tmp_path: Path, other):
    process, child = other
    process.kill()
    process.wait()
    found = running.find(tmp_path)
    assert found is not None
    assert not found.alive
    assert found.left_behind == {"prefect": child.pid}
    with (
        pytest.raises(ValueError, match=rf"was killed, and .* end them first: kill {child.pid}$"),
        running.only_one(tmp_path),
    ):
        pass
    child.kill()
    psutil.wait_procs([child], timeout=30)
    with running.only_one(tmp_path):
        pass
    assert running.find(tmp_path) is None
