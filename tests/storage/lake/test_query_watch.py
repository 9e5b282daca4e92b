"""A query that takes too long, or writes too much, is stopped and says why."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from storage.lake import confined, query_watch
from storage.lake.query_watch import Bounds, watched

ENDLESS = "select count(*) from range(10000000) a, range(10000000) b where a.range * b.range = 7"
WIDE = "select repeat('a', 1000) from range(100000000)"
ASKED = f"""
import duckdb, pathlib, signal
from storage.lake import confined
from storage.lake.query_watch import Bounds, watched
signal.signal(signal.SIGINT, signal.default_int_handler)
bounds = Bounds(seconds=60, file_bytes=2**40)
with duckdb.connect(config=confined.BEFORE) as connection, watched(connection, pathlib.Path("."), bounds):
    print("begins", flush=True)
    connection.sql("{ENDLESS}").fetchall()
"""
BOUNDS = Bounds(seconds=60, file_bytes=2**30)


def connected() -> duckdb.DuckDBPyConnection:
    """A connection as the lake's own: with DuckDB's settings, one in a hundred of these tests would never end."""
    return duckdb.connect(config=confined.BEFORE)


def test_a_query_that_takes_too_long_is_stopped(tmp_path):
    with connected() as connection:
        with (
            pytest.raises(ValueError, match=r"took more than 0.3 s, .* --seconds"),
            watched(connection, tmp_path, Bounds(seconds=0.3, file_bytes=2**30)),
        ):
            connection.sql(ENDLESS).fetchall()
        with watched(connection, tmp_path, BOUNDS):
            assert connection.sql("select 1").fetchall() == [(1,)], "the connection goes on"


def test_a_bound_exceeded_between_steps_of_the_query_is_noticed_too(tmp_path):
    bounds = Bounds(seconds=0.3, file_bytes=2**30)
    with connected() as connection, watched(connection, tmp_path, bounds) as check:
        check()
        time.sleep(0.8)
        with pytest.raises(ValueError, match=r"took more than 0.3 s, .* --seconds"):
            check()


def test_ctrl_c_ends_a_query_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ASKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.5)  # so that it is amid the query
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT, err
    assert "KeyboardInterrupt" in err


def write(folder: Path, bounds: Bounds) -> None:
    with connected() as connection, watched(connection, folder, bounds):
        connection.sql(WIDE).write_csv(str(folder / "answer.csv"))


def test_an_answer_that_grows_too_large_is_stopped(tmp_path):
    with pytest.raises(ValueError, match=r"more than 0.000977 GiB, .* --memory-gb"):
        write(tmp_path, Bounds(seconds=60, file_bytes=2**20))


def test_a_query_leaves_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(query_watch, "LEAST_FREE_BYTES", 2**80)
    with pytest.raises(ValueError, match="set TMPDIR to a folder with more room"):
        write(tmp_path, BOUNDS)


def test_a_query_that_writes_nothing_is_answered_whatever_room_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(query_watch, "LEAST_FREE_BYTES", 2**80)
    monkeypatch.setattr(query_watch, "_EVERY_S", 0.001)
    with connected() as connection, watched(connection, tmp_path, BOUNDS):
        [(total,)] = connection.sql("select sum(range) from range(100000000)").fetchall()
        time.sleep(0.1)  # so that it was looked at
    assert total == 100000000 * (100000000 - 1) // 2


DEAF = """
import pathlib, time
from storage.lake import query_watch
from flows.cli.sql import _give_up
query_watch._PATIENCE_S = 0.3

class Deaf:
    def interrupt(self):
        pass

bounds = query_watch.Bounds(seconds=0.2, file_bytes=2**40)
with query_watch.watched(Deaf(), pathlib.Path("."), bounds, _give_up):
    time.sleep(60)
"""


def test_a_query_that_does_not_end_when_it_is_interrupted_ends_with_its_process():
    """DuckDB 2.0.0 waited for ever in about one of a hundred answers that were interrupted while written to CSV."""
    ended = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 1
    assert "took more than 0.2 s" in ended.stderr
    assert "DuckDB did not stop when it was told to" in ended.stderr


WRITTEN = """
import duckdb, pathlib, sys
from storage.lake import confined
from storage.lake.query_watch import Bounds, watched
ended = 0
for attempt in range(20):
    bounds = Bounds(seconds=0.1 + 0.01 * attempt, file_bytes=2**40)
    try:
        with duckdb.connect(config=confined.BEFORE) as connection, watched(connection, pathlib.Path("."), bounds):
            endless = connection.sql("select a.range * b.range from range(10000000) a, range(10000000) b")
            endless.write_csv(sys.argv[1])
    except ValueError:
        ended += 1
print(ended)
"""


def test_answers_that_are_interrupted_while_they_are_written_end(tmp_path):
    command = [sys.executable, "-c", WRITTEN, str(tmp_path / "answer.csv")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "20\n"
    with connected() as connection:
        assert connection.sql("select current_setting('async_threads')").fetchall() == [(0,)], "see `confined.BEFORE`"
