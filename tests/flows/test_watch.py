"""When a retraining is due, and of what. A real server that starts one: `servers/test_up.py`."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from dreamshard.testbeds import is_testbed
from flows import watch
from flows.forms.form import configure
from flows.forms.options import RetrainingOptions, WatchOptions
from flows.rules.warm_start import champion_of, last_trained, opened
from storage.mlflow_store import registry
from tests.flows.commands import Dreamshard
from tests.helpers.versions import training_of, version_of

SMOKE = {"recipe": "smoke", "source": "tables.csv", "testbed": "simulated"}
DAY = date(2026, 11, 25)
WATCHED = WatchOptions(recipe="smoke", source="/tables.csv", devices=8)


@pytest.mark.parametrize(
    ("options", "dataset", "day", "is_same"),
    [
        (WATCHED.model_copy(update={"pooling_drift": 0.5}), "a", DAY, True),
        (WATCHED, "b", DAY, False),
        (WATCHED, "a", date(2026, 11, 26), False),
        (WATCHED.model_copy(update={"devices": 16}), "a", DAY, False),
        (WATCHED.model_copy(update={"algorithm": "paper"}), "a", DAY, False),
    ],
)
def test_the_same_retraining_is_started_once_a_day(options, dataset, day, is_same):
    key = watch.retraining_key(WATCHED, "a", DAY)
    assert (watch.retraining_key(options, dataset, day) == key) is is_same


def version(number: int, dataset: str, **made_of):
    source = str(Path("tables.csv").absolute())
    made = training_of(**{"memory_bytes": 2**29, "source": source, **made_of}, dataset=dataset)
    return version_of(f"models:/m/{number}", made, decided_at="2026-11-22 08:00:00 UTC")


def as_champion(monkeypatch, versions, champion: int | None) -> None:
    known = [replace(version, aliases=("champion",)) if version.number == champion else version for version in versions]
    monkeypatch.setattr(registry, "versions", lambda _: known)


@pytest.mark.parametrize(
    ("versions", "champion", "dataset", "trained"),
    [
        ([], None, "a", None),
        ([version(1, "a")], 1, "b", "a"),
        ([version(1, "a", source="./tables.csv")], 1, "b", "a"),
        ([version(2, "b"), version(1, "a")], 2, "a", "b"),  # back to what the champion has not been trained on
        ([version(2, "b"), version(1, "a")], 1, "a", "a"),  # the champion itself was
        ([version(3, "c"), version(2, "b"), version(1, "a")], 1, "b", "b"),  # a challenger since then was
        ([version(2, "b", source="other.csv"), version(1, "a")], 2, "a", "a"),
        ([version(2, "b", recipe="default"), version(1, "a")], 2, "c", "a"),
        ([version(2, "b", num_devices=4), version(1, "a")], 2, "b", "a"),
        ([version(2, "b", tables_per_task=9), version(1, "a")], 2, "b", "a"),
        ([version(2, "b", memory_bytes=2**30), version(1, "a")], 2, "b", "a"),
        ([version(2, "b", memory_bytes=2**29), version(1, "a")], 2, "b", "b"),
        ([version(2, "b", hardware="simulated v100"), version(1, "a")], 2, "b", "a"),
        ([version(2, "b", kind="cluster"), version(1, "a")], 2, "b", "a"),
    ],
)
def test_the_last_trained_dataset_is_that_of_the_same_retraining(monkeypatch, versions, champion, dataset, trained):
    as_champion(monkeypatch, versions, champion)
    config = configure(RetrainingOptions(**SMOKE, memory_gb=0.5))
    assert last_trained(None, config, dataset) == trained


def test_a_fixed_model_keeps_its_mode_whatever_its_size(monkeypatch):
    as_champion(monkeypatch, [version(2, "b"), version(1, "a", mode="fixed", tables_per_task=99)], None)
    assert last_trained(None, configure(RetrainingOptions(**SMOKE, mode="fixed")), "c") == "a"


def test_a_model_keeps_its_batch_size_as_tables_come(monkeypatch, tmp_path):
    (tmp_path / "tables.csv").write_text(f"name,rows,dim,pooling_factor\na,9,4,{2**16}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    as_champion(monkeypatch, [version(1, "a", num_devices=8)], 1)
    for given, batch in (({"devices": 8}, 512), ({"devices": 8, "batch_size": 64}, 64), ({"devices": 4}, 2**12)):
        config, _ = opened(RetrainingOptions(**SMOKE | {"recipe": "default"} | given))
        assert config.workload.batch_size == batch


@pytest.mark.parametrize(
    ("name", "kind", "hardware", "can"),
    [
        ("auto", "cluster", "NVIDIA H200 x8", True),
        ("cluster:cuda", "cluster", "NVIDIA H200 x8", True),
        ("emulated:h200", "emulated", "NVIDIA H200 for each device, links of h200", True),
        ("emulated:v100", "emulated", "NVIDIA H200 for each device, links of h200", False),
        ("simulated", "simulated", "simulated v100", False),
        ("simulated", "cluster", "NVIDIA H200 x8", False),
    ],
)
def test_a_testbed_has_a_name_as_far_as_machines_agree(name, kind, hardware, can):
    assert is_testbed(name, kind, hardware) is can


def test_the_champion_of_what_is_watched_is_named(monkeypatch):
    champions = [version(3, "d", hardware="simulated v100", num_devices=8), version(2, "d", num_devices=8)]
    monkeypatch.setattr(registry, "versions", lambda _: [replace(one, aliases=("champion",)) for one in champions])
    eight, four = (configure(RetrainingOptions(**SMOKE, devices=devices)) for devices in (8, 4))
    sentence = "m version 2 is in use since 2026-11-22 08:00:00 UTC (simulated rtx2080ti"
    assert watch.champion_sentence(champion_of(None, eight)).startswith(sentence)
    assert champion_of(None, four) is None


def test_watch_looks_once_and_starts_nothing(dreamshard: Dreamshard, tmp_path: Path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{i},1000,8,2\n" for i in range(20)))
    options = ("--recipe", "smoke", "--testbed", "simulated", "--source", str(tables), "--json")
    done = dreamshard("watch", *options, home=tmp_path / "home")
    assert done.returncode == 0, done.sentence
    outcome = json.loads(done.stdout)
    assert [outcome[name] for name in ("matters", "started", "trained", "tables_after")] == [True, None, None, 20]
    assert outcome["sentence"] == "20 tables, on which no training with these options has ended yet"
    assert outcome["retraining"] == f"Retraining is due: source {tables}, recipe smoke, testbed simulated."
