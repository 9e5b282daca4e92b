"""When tables changed enough to ask for a retraining, and when one is under way. The event itself: `test_servers.py`."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Dreamshard
from prefect.client.schemas.objects import StateType

SMOKE = ("--recipe", "smoke", "--testbed", "simulated")


def run(state: StateType, source: str | None = "tables.csv", *, scheduled: bool = False, recipe: str = "smoke"):
    parameters = {"recipe": recipe, "source": source, "seed": 0}
    return SimpleNamespace(state_type=state, auto_scheduled=scheduled, parameters=parameters, name="able-ant")


@pytest.mark.parametrize(
    ("found", "under_way"),
    [
        (run(StateType.RUNNING), True),
        (run(StateType.SCHEDULED), True),
        (run(StateType.RUNNING, scheduled=True), True),
        (run(StateType.SCHEDULED, scheduled=True), False),
        (run(StateType.RUNNING, "other.csv"), False),
        (run(StateType.RUNNING, None), False),
        (run(StateType.RUNNING, recipe="default"), False),
    ],
)
def test_a_retraining_of_the_same_recipe_and_source_is_waited_for_but_no_schedule(found, under_way):
    from flows import watch

    assert watch._is_of(found, {"recipe": "smoke", "source": "tables.csv"}) is under_way


def version(number: int, dataset: str, source: str = "tables.csv", recipe: str = "smoke"):
    origin = SimpleNamespace(recipe=recipe, source=source, dataset=dataset)
    return SimpleNamespace(version=str(number), origin=origin)


@pytest.mark.parametrize(
    ("versions", "champion", "dataset", "trained"),
    [
        ([], None, "a", None),
        ([version(1, "a")], "1", "b", "a"),
        ([version(2, "b"), version(1, "a")], "2", "a", "b"),  # back to what the champion has not been trained on
        ([version(2, "b"), version(1, "a")], "1", "a", "a"),  # the champion itself was
        ([version(3, "c"), version(2, "b"), version(1, "a")], "1", "b", "b"),  # a challenger since then was
        ([version(2, "b", source="other.csv"), version(1, "a")], "2", "a", "a"),
        ([version(2, "b", recipe="default"), version(1, "a")], "2", "c", "a"),
    ],
)
def test_the_last_trained_dataset_is_that_of_this_recipe_and_source(monkeypatch, versions, champion, dataset, trained):
    from flows import watch

    monkeypatch.setattr(watch.lineage, "versions", lambda: iter(versions))
    monkeypatch.setattr(watch.registry, "champion", lambda _: champion)
    assert watch.last_trained("smoke", "tables.csv", dataset) == trained


def test_the_command_looks_once_says_what_would_start_and_starts_nothing(dreamshard: Dreamshard, tmp_path: Path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{i},1000,8,2\n" for i in range(20)))
    done = dreamshard("watch", *SMOKE, "--source", str(tables), "--json", home=tmp_path / "home")
    assert done.returncode == 0, done.sentence
    found = json.loads(done.stdout)
    assert (found["matters"], found["emitted"], found["trained"], found["tables_after"]) == (True, False, None, 20)
    assert found["sentence"] == "20 tables, none of which has been trained on yet"
    assert found["retraining"] == f"Retraining is due: recipe smoke, seed 0, testbed simulated, source {tables}."
