import os
import subprocess
import sys
from pathlib import Path

from flows.servers import local_servers

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
