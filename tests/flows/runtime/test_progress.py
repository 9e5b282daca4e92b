import pytest

from flows.runtime.progress import STAGES, listening, overall_percent, report_progress


def test_progress_runs_from_nothing_to_a_hundred_percent_by_the_shares_of_stages():
    first, *_, last = STAGES
    assert overall_percent(first, 0, 5) == 0
    assert overall_percent(last, 1, 1) == pytest.approx(100)
    before, half, after = (overall_percent("train", done, 10) for done in (0, 5, 10))
    assert half - before == pytest.approx(after - half)
    assert [overall_percent("train", done, 10, ("train",)) for done in (5, 10)] == [50, 100]


def test_a_listener_hears_what_is_done_while_it_listens():
    heard = []
    with listening(lambda *report: heard.append(report)):
        report_progress("measure", 1, 2, "train-000")
        report_progress("train", 1, 10)
    report_progress("measure", 2, 2)
    assert heard == [("measure", 1, 2, "train-000"), ("train", 1, 10, "")]
