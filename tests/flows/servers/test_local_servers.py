import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flows.servers import local_servers, prefect_server
from flows.servers.deploying import Deployer, deployer
from flows.servers.processes import StoppedError, wait_until_healthy
from storage.schedule import Schedule
from tests.flows.servers_up import until

HEAVY = ("torch", "numpy", "pyarrow", "prefect", "mlflow", "pandas", "duckdb")


def test_the_process_that_waits_for_the_servers_loads_none_of_what_they_need(tmp_path: Path):
    program = (
        "import sys\nfrom pathlib import Path\n"
        "import flows.cli.servers, flows.servers.local_servers\n"
        "from flows.cli.command_options import enter\nfrom flows.servers import running\n"
        f"home = Path({str(tmp_path)!r})\nenter(home)\n"
        "with running.only_one(home):\n    running.record(home, 'p', 'm', {})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_prefects_pages_are_copied_into_the_home_where_its_own_folder_cannot_be_written(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(local_servers.os, "access", lambda path, _: not path.endswith("prefect/server"))
    folder = {"PREFECT_SERVER_UI_STATIC_DIRECTORY": str(tmp_path / "prefect" / "pages")}
    assert local_servers.writable_pages(tmp_path, {}) == folder
    assert local_servers.writable_pages(tmp_path, {"PREFECT_SERVER_UI_STATIC_DIRECTORY": "/elsewhere"}) == {}
    monkeypatch.setattr(local_servers.os, "access", lambda path, _: path.endswith("prefect/server"))
    assert local_servers.writable_pages(tmp_path, {}) == {}


def test_what_is_deployed_is_told_to_its_process_where_no_other_user_reads_it(tmp_path: Path):
    schedule, environment = (
        Schedule(source="/private.csv", recipe="of-ours"),
        {**os.environ, "DREAMSHARD_HOME": str(tmp_path)},
    )
    others = set(psutil.Process().children())
    stop = threading.Event()
    with deployer(schedule, environment, tmp_path, measures_here=False, given=["source"], stop=stop) as deploying:
        [process] = set(psutil.Process().children()) - others
        command = until(process.cmdline, 60)  # empty for a moment while the process begins
        assert command[1:] == ["-m", "flows.servers.deploying"]
        with pytest.raises(ValueError, match="there is no recipe 'of-ours'"):
            deploying.checked()


def test_ctrl_c_ends_the_start_of_the_servers(tmp_path: Path):
    stop = threading.Event()
    stop.set()
    log = tmp_path / "log"
    receiver, sender = os.pipe()
    with subprocess.Popen(["sleep", "60"]) as process, os.fdopen(receiver, "rb", buffering=0) as steps:
        with pytest.raises(StoppedError):
            wait_until_healthy("http://127.0.0.1:9/", process, log, stop=stop)
        with pytest.raises(StoppedError):
            Deployer(process, steps, log, stop).deployed()
        os.write(sender, b'{"checked": ["fits"]}\n{"deployed": ["done"]}\n')
        assert [Deployer(process, steps, log, stop).checked(), Deployer(process, steps, log, stop).deployed()] == [
            ["fits"],
            ["done"],
        ]
        os.close(sender)
        process.kill()


def test_prefects_server_is_calm_and_asks_for_the_login_whoever_starts_it(monkeypatch):
    seen = []
    program = SimpleNamespace(app=lambda: seen.append(dict(os.environ)))
    monkeypatch.setitem(sys.modules, "prefect.cli", program)
    monkeypatch.setattr(prefect_server, "calm", lambda: None)
    monkeypatch.setattr(prefect_server, "keep_pages_to_this_server", lambda: None)
    monkeypatch.setattr(sys, "argv", ["server"])
    loop = "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS"
    for given in ({"DREAMSHARD_LOGIN": "off"}, {"DREAMSHARD_LOGIN": "ada:s3cret", loop: "7"}):
        monkeypatch.setattr(os, "environ", given)
        prefect_server.main()
    off, on = seen
    assert off.items() >= {**prefect_server.CALM, **prefect_server.PAGES}.items()
    assert "PREFECT_SERVER_API_AUTH_STRING" not in off
    assert (on["PREFECT_SERVER_API_AUTH_STRING"], on[loop]) == ("ada:s3cret", "7")
