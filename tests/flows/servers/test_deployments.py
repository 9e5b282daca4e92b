"""Messages about failed retrainings, and warnings about edited settings."""

from datetime import timedelta
from uuid import uuid4

import jinja2
import pytest

from flows.reports.failure_sentence import TEMPLATE, failure_sentence
from flows.servers import automations, deployment
from storage.schedule import Schedule


def test_each_failed_retraining_is_told_and_a_failing_watch_once_a_day():
    retraining, watching = (automations.on_failure(name, uuid4(), None).trigger for name in ("retrain", "watch"))
    assert (retraining.within, retraining.for_each) == (timedelta(0), {"prefect.resource.id"})
    assert (watching.within, watching.for_each) == (timedelta(days=1), {"related:deployment:prefect.resource.id"})


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Flow run encountered an exception: ValueError: tables.csv: row 3 is wrong", "tables.csv: row 3 is wrong"),
        ("Flow run encountered an exception: KeyError", "KeyError"),
        ("tables.csv: row 3 is wrong", "tables.csv: row 3 is wrong"),
        ("Process exited: status 1", "Process exited: status 1"),
    ],
)
def test_prefects_words_are_left_out_of_a_message_and_nothing_else(message, sentence):
    assert failure_sentence(message) == sentence
    run = {"state": {"message": message}}
    assert jinja2.Template(TEMPLATE).render(flow_run=run) == sentence, "as Prefect's server renders it"


def test_a_value_edited_in_prefect_that_cannot_work_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{t},195312,64,2\n" for t in range(60)))
    edited = Schedule(source=str(tables), memory_gb=0.001, mode="fixed", num_devices=2)
    (warning,) = deployment._fit_as_edited(edited, measures_here=True)
    assert warning.startswith("warning: as edited in Prefect, runs will fail: the scheduled flows could not train on")
