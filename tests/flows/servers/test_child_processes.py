"""Ports, logs and lives of the processes that `up`, `serve` and tests start."""

import os
import socket
import sys

import pytest

from flows.servers import processes
from flows.servers.processes import child_process, free_port, last_lines


@pytest.fixture
def taken():
    """A port on which something listens, on all interfaces."""
    with socket.socket() as listening:
        listening.bind((processes.EVERYWHERE, 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_another_port_is_chosen_only_where_nobody_elsewhere_knows_the_first(taken):
    assert free_port(taken) not in (0, taken)
    with pytest.raises(OSError, match=rf"no server can listen on port {taken} of 0\.0\.0\.0: it is taken"):
        free_port(taken, processes.EVERYWHERE)
    assert free_port(0, processes.EVERYWHERE) > 0


def test_a_host_that_is_no_address_of_this_machine_is_refused():
    with pytest.raises(OSError, match=r"or 192\.0\.2\.1 is no address of this machine"):
        free_port(4200, "192.0.2.1")  # RFC 5737: of documentation


def test_a_log_that_has_grown_long_begins_anew_and_one_before_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LOG_BYTES", 40)
    for text in ("a" * 30, "b" * 30, "c" * 30, "d" * 30):
        command = [sys.executable, "-c", f"print('{text}')"]
        with child_process("server", command, os.environ, tmp_path) as process:
            process.wait()
    assert (tmp_path / "server.log").read_text() == "c" * 30 + "\n" + "d" * 30 + "\n"
    assert (tmp_path / "server.log.1").read_text() == "a" * 30 + "\n" + "b" * 30 + "\n"


def test_the_last_lines_of_a_long_log_are_those_at_its_end(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes("é".encode() * 30_000 + b"\none\ntwo\nthree\n")
    assert last_lines(log) == "one | two | three"
    log.write_text("")
    assert last_lines(log) == ""
