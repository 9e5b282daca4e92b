"""Prefect's temporary servers of a new home: killed while one makes the database, and several that start at once."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from flows.servers.processes import answers

pytestmark = pytest.mark.server


def started(ending: ExitStack, home: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """A server of the home as a command starts it, and its address."""
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT__SERVER_EPHEMERAL": "1"}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        command = [sys.executable, "-m", "flows.servers.temporary_server", str(listener.fileno()), str(os.getpid())]
        server = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
        ending.callback(server.wait)
        ending.callback(server.kill)
        return server, f"http://127.0.0.1:{listener.getsockname()[1]}/api/health"


def tables(database: Path) -> int:
    """How many tables a database has; 0 while there is none."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=60)) as opened:
        return int(opened.execute("select count(*) from sqlite_master where type = 'table'").fetchone()[0])


def test_servers_start_at_once_in_a_new_home_and_one_is_killed_while_it_makes_the_database(tmp_path: Path):
    database = tmp_path / "prefect.db"
    with ExitStack() as ending:
        servers = dict(started(ending, tmp_path) for _ in range(2))
        while not (made := tables(database)):
            assert [server.poll() for server in servers] == [None] * 2
            time.sleep(0.01)
        (killed,) = (server for server in servers if holds(server, database))
        killed.kill()
        killed.wait()
        del servers[killed]
        deadline = time.monotonic() + 300
        while not all(map(answers, servers.values())):
            assert [server.poll() for server in servers] == [None], "one ended where another started too"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert tables(database) > made, "it was killed when all was done"
        with closing(sqlite3.connect(database, timeout=60)) as opened:
            assert opened.execute("pragma integrity_check").fetchall() == [("ok",)]


def holds(server: "subprocess.Popen[bytes]", file: Path) -> bool:
    """Whether a process has a file open."""
    return any(Path(opened.path) == file for opened in psutil.Process(server.pid).open_files())
