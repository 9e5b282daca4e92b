"""A new home's database, which several processes may open at the same time."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

OPEN_AND_RUN = """
import sys
from storage.mlflow_store import runs
from storage.settings import Settings
with runs.chain(Settings.from_environment({"DREAMSHARD_HOME": sys.argv[1]}), "retrain"):
    pass
"""


def test_processes_that_open_a_new_home_at_once_all_keep_their_runs(tmp_path: Path):
    processes = [subprocess.Popen([sys.executable, "-c", OPEN_AND_RUN, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as opened:
        assert opened.execute("select count(*) from runs where status = 'FINISHED'").fetchone()[0] == 2
