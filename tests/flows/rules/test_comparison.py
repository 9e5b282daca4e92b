from dataclasses import replace
from datetime import datetime

import pytest

from flows.rules import contestants
from storage.run_records.trainings import Topology, Training
from tests.helpers.tables import pool_of
from tests.helpers.versions import training_of, version_of

RANKS = training_of("cluster", "a machine x4", dataset="a", num_devices=4, tables_per_task=5, memory_bytes=2**30)
MODEL = training_of(hardware="simulated h100", dataset="a", tables_per_task=5, memory_bytes=2**30)
FIXED = training_of(hardware="simulated h100", dataset="a", mode="fixed", memory_bytes=2**30)
OTHER = training_of(hardware="simulated h100", dataset="b", tables_per_task=5, memory_bytes=2**31)


def versions_of(*trainings: Training):
    return [
        replace(version_of(f"models:/m/{number}", made), created=datetime(2026, 11, number))
        for number, made in enumerate(trainings, start=1)
    ]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch):
    """A function that gives the setting of a comparison of versions 1, 2, ..., of which 8 of 20 tables are held out."""

    def fill(*trainings: Training, unseen: int = 8):
        pool = pool_of(20)
        parts = pool.select(range(unseen, 20)), pool.select(range(unseen))
        monkeypatch.setattr(contestants, "split_by_training", lambda *_: parts)
        return contestants.setting_of(None, versions_of(*trainings))

    return fill


def test_the_setting_is_the_first_versions_on_the_newest_tables(compared):
    recipe, dataset, sentence = compared(RANKS, OTHER)
    assert (recipe, dataset) == (replace(RANKS.recipe, testbed="cluster"), "b")
    assert sentence.startswith("compared as m version 1 was trained, on dataset b: tasks of 5 tables")


def test_a_fixed_models_version_makes_all_compare_on_it(compared):
    recipe, _, sentence = compared(MODEL, FIXED)
    assert recipe.tasks.mode == "fixed"
    assert "one fixed model, since no table is held out for m version 2" in sentence


def test_tasks_are_no_larger_than_the_held_out_tables(compared):
    recipe, _, sentence = compared(MODEL, MODEL, unseen=3)
    assert (recipe.tasks.tables_per_task, "tasks of 3 tables" in sentence) == (3, True)
    with pytest.raises(ValueError):
        compared(MODEL, MODEL, unseen=1)


def test_predictions_of_other_hardware_than_measured_are_named():
    one, two = versions_of(RANKS, MODEL)
    ranks = Topology(testbed="cluster", hardware="a machine x4", num_devices=4)
    assert "those of m version 2 of simulated h100 · 2 devices" in contestants.other_hardware([one, two], ranks)
    assert contestants.other_hardware([one], ranks) == ""
    assert "m version 1" in contestants.other_hardware([one], replace(ranks, num_devices=8))
