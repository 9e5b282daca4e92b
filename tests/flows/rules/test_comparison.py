from dataclasses import replace
from datetime import datetime

import pytest

from flows.forms.options import CompareOptions
from flows.rules import comparison
from storage.run_records.trainings import Topology, Training
from tests.helpers.tables import pool_of
from tests.helpers.versions import training_of, version_of

RANKS = training_of("cluster", "a machine x4", dataset="a", num_devices=4, tables_per_task=5, memory_bytes=2**30)
MODEL = training_of(hardware="simulated h100", dataset="a", tables_per_task=5, memory_bytes=2**30)
FIXED = training_of(hardware="simulated h100", dataset="a", mode="fixed", memory_bytes=2**30)
OTHER = training_of(hardware="simulated h100", dataset="b", tables_per_task=5, memory_bytes=2**31)
OWN = training_of("mine", "my board", testbed="package:factory", tables_per_task=5)


def versions_of(*trainings: Training):
    return [
        replace(version_of(f"models:/m/{number}", made), created=datetime(2026, 11, number))
        for number, made in enumerate(trainings, start=1)
    ]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch):
    """A function that fills the options of a comparison of versions 1, 2, ..., of which 8 of 20 tables are held out."""

    def fill(*trainings: Training, heldout: int = 8, **options):
        pool = pool_of(20)
        parts = pool.select(range(heldout, 20)), pool.select(range(heldout))
        monkeypatch.setattr(comparison, "split_by_training", lambda *_: parts)
        known = versions_of(*trainings)
        given = CompareOptions(versions=[each.uri for each in known], **options)
        return comparison.with_sizes_of_versions(None, given, known)

    return fill


def test_what_is_not_given_is_that_of_the_versions(compared):
    filled, sentence = compared(MODEL, MODEL)
    assert (filled.recipe, filled.testbed, filled.devices, filled.memory_gb) == ("smoke", "simulated:h100", 2, 1.0)
    assert (filled.mode, filled.tables_per_task, filled.dataset) == ("pool", 5, "a")
    assert sentence.startswith(
        "compared as m version 1 was trained: tasks of 5 tables of dataset a, 2 devices of 1 GiB"
    )
    assert compared(OWN)[0].testbed == "package:factory"


def test_where_versions_differ_the_first_and_the_newest_tables_count(compared):
    filled, _ = compared(RANKS, OTHER)
    assert (filled.testbed, filled.devices, filled.memory_gb, filled.dataset) == ("cluster", 4, 1.0, "b")
    filled, _ = compared(RANKS, OTHER, devices=8, dataset="c", mode="pool", tables_per_task=6)
    assert (filled.devices, filled.dataset, filled.tables_per_task) == (8, "c", 6)


def test_a_fixed_models_version_makes_all_compare_on_it(compared):
    filled, sentence = compared(MODEL, FIXED)
    assert (filled.mode, filled.tables_per_task) == ("fixed", None)
    assert "one fixed model, since no table is held out for m version 2" in sentence


def test_tasks_are_no_larger_than_the_held_out_tables(compared):
    filled, sentence = compared(MODEL, MODEL, heldout=3)
    assert filled.tables_per_task == 3
    assert "tasks have 3 tables rather than 5" in sentence
    with pytest.raises(ValueError):
        compared(MODEL, MODEL, heldout=1)
    filled, _ = compared(MODEL, MODEL, tables_per_task=8)
    assert (filled.mode, filled.tables_per_task) == ("pool", 8)


def test_predictions_of_other_hardware_than_measured_are_named():
    one, two = versions_of(RANKS, MODEL)
    ranks = Topology(testbed="cluster", hardware="a machine x4", num_devices=4)
    assert "those of m version 2 of simulated h100 · 2 devices" in comparison.other_hardware([one, two], ranks)
    assert comparison.other_hardware([one], ranks) == ""
    assert "m version 1" in comparison.other_hardware([one], replace(ranks, num_devices=8))
