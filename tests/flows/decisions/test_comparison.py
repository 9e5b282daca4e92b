"""What a comparison takes from the versions themselves, and what it refuses before anything starts."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dreamshard.tables import Tables
from flows.decisions import comparison
from flows.forms.options import CompareOptions
from storage.mlflow_store import registry
from storage.mlflow_store.topology import Topology
from storage.run_records import lineage
from tests.helpers.tables import pool_of

RANKS = {"testbed": "cluster", "hardware": "a machine x4", "devices": 4, "tables per task": 5}
MODEL = {"testbed": "simulated", "hardware": "simulated h100", "devices": 2, "tables per task": 5}
OWN = {"testbed": "mine", "hardware": "my board", "devices": 2, "tables per task": 5}


def origin(setting: lineage.Setting, dataset: str = "aaaaaaaaaaaa", memory_bytes: int = 2**30) -> dict[str, str]:
    made = lineage.Origin(
        recipe="smoke",
        source="tables.csv",
        dataset=dataset,
        tasks="t",
        setting=setting,
        memory_bytes=memory_bytes,
    )
    return {lineage.TAG: made.to_json()}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch):
    """A function that fills the options of a comparison of versions 1, 2, ..., of which 8 of 20 tables are held out."""

    def fill(*tags: dict[str, str], heldout: int = 8, registered_ms: Sequence[int] = (1, 2), **options):
        known = {f"models:/m/{number}": each for number, each in enumerate(tags, start=1)}
        models = {
            number: SimpleNamespace(run_id=f"run {number}", creation_timestamp=registered, tags=each)
            for (number, each), registered in zip(known.items(), registered_ms, strict=False)
        }
        monkeypatch.setattr(registry, "find", lambda _, version: models[version])
        pool: Tables = pool_of(20)
        parts = pool.select(range(heldout, 20)), pool.select(range(heldout))
        monkeypatch.setattr(comparison, "split_by_training", lambda *_: parts)
        lake = SimpleNamespace(dataset_versions=lambda: ["aaaaaaaaaaaa", "bbbbbbbbbbbb"])
        monkeypatch.setattr(registry, "version_tags", lambda _, version: models[version].tags)
        store = SimpleNamespace(settings=None, lake=lake)
        asked = CompareOptions(versions=list(known), **options)
        return comparison.with_sizes_of_versions(store, asked, list(known))

    return fill


def test_what_is_not_given_is_that_of_the_versions(compared):
    filled, sentence = compared(origin(MODEL), origin(MODEL))
    assert (filled.recipe, filled.testbed, filled.devices, filled.memory_gb) == ("smoke", "simulated:h100", 2, 1.0)
    assert (filled.mode, filled.tables_per_task, filled.dataset) == ("pool", 5, "aaaaaaaaaaaa")
    assert sentence == (
        "compared as m version 1 was trained: tasks of 5 tables of dataset aaaaaaaaaaaa, 2 devices of 1 GiB, testbed "
        "simulated:h100"
    )


def test_where_versions_differ_it_is_said_whose_value_is_taken(compared):
    filled, sentence = compared(origin(RANKS), origin(MODEL, "bbbbbbbbbbbb", 2**31))
    assert (filled.testbed, filled.devices, filled.dataset) == ("cluster", 4, "bbbbbbbbbbbb")
    for part in (
        "the testbed is that of m version 1, cluster, not simulated:h100 (m version 2)",
        "the number of devices is that of m version 1, 4, not 2 (m version 2)",
        "the room per device is that of m version 1, 1 GiB, not 2 GiB (m version 2)",
        "the tables are those of m version 2, the newest",
    ):
        assert part in sentence


def test_a_version_of_a_fixed_model_makes_all_be_compared_on_one_model(compared):
    filled, sentence = compared(origin(MODEL), origin(MODEL | {"tables per task": "all"}))
    assert (filled.mode, filled.tables_per_task) == ("fixed", None)
    assert "one fixed model, since no table is held out for m version 2" in sentence


def test_tasks_are_no_larger_than_what_is_held_out_and_too_little_is_refused(compared):
    filled, sentence = compared(origin(MODEL), origin(MODEL), heldout=3)
    assert filled.tables_per_task == 3
    assert "tasks have 3 tables rather than 5" in sentence
    with pytest.raises(
        ValueError, match="only 1 tables of dataset aaaaaaaaaaaa are new to all of m version 1, m version 2"
    ):
        compared(origin(MODEL), origin(MODEL), heldout=1)
    with pytest.raises(ValueError, match=r"only 8 tables of dataset .* but a task takes 9, .* fewer --tables"):
        compared(origin(MODEL), origin(MODEL), tables_per_task=9)
    filled, _ = compared(origin(MODEL), origin(MODEL), tables_per_task=8)
    assert (filled.mode, filled.tables_per_task) == ("pool", 8)


def test_tables_that_are_not_here_and_a_testbed_without_a_name_are_refused(compared, monkeypatch):
    with pytest.raises(ValueError, match="dataset cccccccccccc, of m version 2, is not in the lake of this home"):
        compared(origin(MODEL), origin(MODEL, "cccccccccccc"))
    client = SimpleNamespace(get_run=lambda _: SimpleNamespace(data=SimpleNamespace(params={})))
    monkeypatch.setattr(comparison.runs, "client", lambda _: client)
    with pytest.raises(ValueError, match="m version 1 was trained on my board, whose testbed has no name here"):
        compared(origin(OWN))


def test_predictions_of_other_hardware_than_what_is_measured_are_named(compared, monkeypatch):
    compared(origin(RANKS), origin(MODEL))
    store, one, two = SimpleNamespace(settings=None), "models:/m/1", "models:/m/2"
    ranks = Topology(testbed="cluster", hardware="a machine x4", num_devices=4)
    assert comparison.other_hardware(store, [one, two], ranks) == (
        "measured on a machine x4 · 4 devices, but the predictions are those of m version 2 of simulated h100 · 2 devices"
    )
    assert comparison.other_hardware(store, [one], ranks) == ""
    more = replace(ranks, num_devices=8)
    assert comparison.other_hardware(store, [one], more).endswith("m version 1 of a machine x4 · 4 devices")
