import subprocess
import sys
from pathlib import Path

import pytest

from flows.servers import running
from flows.servers.processes import check_free

OTHER = """
import sys
from pathlib import Path
from flows.servers import running
with running.only_one(Path(sys.argv[1]), "http://127.0.0.1:4200", "http://127.0.0.1:5000"):
    print("runs", flush=True)
    input()
"""


def test_a_second_up_is_refused_until_the_first_ends(tmp_path: Path):
    command, pipe = [sys.executable, "-c", OTHER, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "runs\n"
        found = running.find(tmp_path)
        assert found == running.Running(
            pid=process.pid, prefect="http://127.0.0.1:4200", mlflow="http://127.0.0.1:5000"
        )
        with pytest.raises(ValueError, match=f"kill {process.pid}$"), running.only_one(tmp_path, "", ""):
            pass
        process.kill()
        process.wait()
    assert running.find(tmp_path) is None
    with running.only_one(tmp_path, "", ""):
        pass


def test_a_taken_port_is_refused():
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 is taken"):
            check_free(port)
