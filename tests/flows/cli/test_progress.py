"""What a run says of its progress where no terminal can draw bars, as in the log of a scheduled run."""

import pytest

from flows.cli import terminal
from flows.runtime.progress import report_progress


@pytest.fixture
def clock(monkeypatch):
    now = {"s": 0.0}
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now["s"])
    return now


def test_without_a_terminal_a_stage_has_a_line_when_it_ends_and_every_minute(clock, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "ERR", terminal.Console(stderr=True, width=100))
    with terminal.progress_bars(quiet=False):
        for done, clock["s"] in enumerate((20.0, 50.0, 61.0, 100.0, 121.0, 125.0), start=1):
            report_progress("train", done, 6)
    assert capsys.readouterr().err.splitlines() == [f"[3/6] train: {done} of 6" for done in (3, 5, 6)]


def test_nothing_is_said_where_nothing_is_wanted(clock, capsys):
    with terminal.progress_bars(quiet=True):
        report_progress("train", 6, 6)
    assert capsys.readouterr().err == ""
