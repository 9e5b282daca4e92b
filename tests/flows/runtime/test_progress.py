import pytest

from flows.runtime.progress import STAGES, listening, overall_percent, report_progress


def test_the_chain_begins_at_nothing_and_ends_at_a_hundred_percent():
    first, *_, last = STAGES
    assert overall_percent(first, 0, 5) == 0
    assert overall_percent(last, 1, 1) == pytest.approx(100)


def test_half_of_a_stage_is_half_of_its_share():
    before = overall_percent("train", 0, 10)
    assert overall_percent("train", 5, 10) - before == pytest.approx(overall_percent("train", 10, 10) / 2 - before / 2)


def test_a_stage_on_its_own_is_the_whole():
    assert overall_percent("train", 5, 10, ("train",)) == 50
    assert overall_percent("train", 10, 10, ("train",)) == 100


def test_a_listener_hears_what_is_done_while_it_listens():
    heard = []
    with listening(lambda *report: heard.append(report)):
        report_progress("measure", 1, 2, "train-000")
        report_progress("train", 1, 10)
    report_progress("measure", 2, 2)
    assert heard == [("measure", 1, 2, "train-000"), ("train", 1, 10, "")]
