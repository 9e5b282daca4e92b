from dataclasses import replace

import pytest

from dreamshard.evaluation import PairedComparison
from dreamshard.training import TrainingConfig
from storage.run_records import checkpoints, report_store
from storage.run_records.report_store import EvaluationReport, PlacerFigures
from tests.helpers.samples import MEASURED, four_tables
from tests.helpers.trained import start_training

NEVER = PairedComparison(fits=False, mean_gain=None, low=None, high=None, num_tasks=1)
FIGURES = {"placer": "dreamshard", "overall_ms": None, "predicted_ms": {"dreamshard": 1 / 3}, "place_ms": 0.1}
FACTS = {"key": "a", "dataset": "d", "tasks": "t", "reference": "random", **MEASURED}
FACTS |= {"task_names": ("test-000",), "versions": {"champion 3": "3"}, "training": "training", "iteration": 2}
REPORT = EvaluationReport(placers=(PlacerFigures(**FIGURES),), gains={"dreamshard": {"random": NEVER}}, **FACTS)


def test_a_report_is_read_as_written_without_infinities(store):
    report_store.save(store, REPORT)
    assert report_store.load(store, "a") == REPORT
    text = report_store.path(store, "a").read_text()
    assert "Infinity" not in text
    assert "NaN" not in text


def test_a_report_that_is_requested_again_is_the_newest(store):
    for key in ("a", "b"):
        report_store.save(store, replace(REPORT, key=key))
        report_store.mark_newest(store, "training", key)
    assert report_store.newest(store, "training").key == "b"
    report_store.mark_newest(store, "training", "a")
    assert report_store.newest(store, "training").key == "a"
    report_store.path(store, "a").unlink()
    with pytest.raises(ValueError):
        report_store.newest(store, "training")
    assert report_store.newest(store, "u") is None


def test_a_state_comes_back_with_its_figures_until_discarded(store):
    state = start_training(four_tables(), TrainingConfig(), seed=0)
    checkpoints.save(store, "key", "iteration_02", state, {"cost_loss": 0.5})
    assert checkpoints.load(store, "key", "iteration_02").config == state.config
    assert checkpoints.figures(store, "key", "iteration_02") == {"cost_loss": 0.5}
    assert checkpoints.is_complete(store, "key", 2)
    assert {path.name for path in (store.checkpoints / "key").iterdir()} == {"iteration_02.json", "iteration_02.zip"}
    for _ in range(2):
        checkpoints.discard(store, "key", "iteration_02", "fitted")
    with pytest.raises(ValueError):
        checkpoints.load(store, "key", "iteration_02")
