"""The plan of a model, without Prefect's server; `servers/test_up.py` has one that a person approves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from dreamshard.tables import Tables
from flows.forms.options import PromoteOptions, RetrainOptions
from flows.place import plan_model
from flows.promote import take_into_use
from storage.mlflow_store import registry, runs
from storage.run_records import plans, trainings
from storage.store import Store
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt_placer
from tests.helpers.versions import training_of, version_of


class Model:
    """A model whose tables change, and whose champion is an untrained placer's version."""

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name

    def planned(self, tables: Tables, **options) -> dict:
        dataset = self.store.lake.write_dataset(tables, "a folder", self.name)
        made = training_of(mode="fixed", source=str(self.store.home), dataset=dataset, memory_bytes=2**40)
        trainings.write(self.store, self.name, replace(made, recipe=replace(made.recipe, model=self.name)))
        return plan_model.fn(self.store, self.name, RetrainOptions(**options))

    @property
    def current(self) -> plans.ModelPlan | None:
        return plans.current(self.store, self.name)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store):
    """Two models on one hardware."""
    champion = version_of("models:/m/1", training_of(mode="fixed"), ("champion",))
    monkeypatch.setattr(registry, "champion", lambda *_: champion)
    monkeypatch.setattr(registry, "versions", lambda _: [champion])
    monkeypatch.setattr(registry, "find", lambda *_: champion)
    monkeypatch.setattr(registry, "load_placer", lambda *_: learnt_placer())
    monkeypatch.setattr(runs.Run, "tracking", type("Tracking", (), {"log_text": lambda *_: None})())
    return Model(store, "ads"), Model(store, "feed")


def test_changed_tables_get_a_plan_of_their_model_alone(models):
    ads, feed = models
    tables = pool_of(24)
    for model in models:
        outcome = model.planned(tables.select(range(12)))
        assert (outcome["number"], outcome["is_current"], model.current.replaces) == (1, True, None)
    again = take_into_use(ads.store, PromoteOptions(model="ads", plan="1"))
    assert (again["roll_back"], ads.current.replaces) == ("", None), "it was current already"
    first = ads.current
    assert "stays current" in ads.planned(tables.select(range(12)))["sentence"], "nothing has changed"
    proposed = ads.planned(tables.select(range(1, 14)))
    assert (proposed["number"], proposed["is_current"], ads.current) == (2, False, first)
    assert "dreamshard promote --model ads --plan 2" in proposed["sentence"]
    differs = f"new: {', '.join(tables.names[12:14])}; removed: {tables.names[0]}"
    assert f"; plan 1 no longer loads ({differs}), so" in proposed["sentence"]
    taken = take_into_use(ads.store, PromoteOptions(model="ads", plan="2", reason="new tables"))
    assert taken["roll_back"] == "dreamshard promote --model ads --plan 1"
    assert "new tables" in ads.current.current_because
    assert take_into_use(ads.store, PromoteOptions(model="ads", plan="2"))["roll_back"] == taken["roll_back"]
    assert (ads.current.number, ads.current.replaces, set(ads.current.tables)) == (2, 1, {*tables.names[1:14]})
    moved = [move["table"] for move in ads.current.moves if move["source"] is None]
    assert set(moved) == {*tables.names[12:14]}, "which are loaded"
    assert (ads.store.plans / "ads" / "2.html").stat().st_size > 10_000
    take_into_use(ads.store, PromoteOptions(model="ads", plan="previous"))
    assert (ads.current.number, ads.current.tables, feed.current.number) == (1, first.tables, 1)
    automatic = ads.planned(tables.select(range(2, 14)), plan="auto")
    assert (automatic["number"], ads.current.number, ads.current.replaces) == (3, 3, 1)
    assert json.loads((ads.store.plans / "ads" / "current.json").read_text())["roll_back"].endswith("--plan 1")


@pytest.mark.parametrize("options", [{"plan": "off"}, {}])
def test_without_policy_or_one_model_there_is_no_plan(models, options):
    ads, _ = models
    if not options:
        trainings.write(ads.store, "ads", training_of(mode="pool"))
        outcome = plan_model.fn(ads.store, "ads", RetrainOptions())
    else:
        outcome = ads.planned(pool_of(12), **options)
    assert outcome["sentence"].startswith("no plan was made")
    assert ads.current is None


@pytest.mark.parametrize(
    "wrong", [{}, {"plan": "1"}, {"model": "ads", "plan": "9"}, {"model": "ads", "plan": "1", "version": "1"}]
)
def test_neither_or_an_unknown_plan_is_refused(store, wrong):
    with disable_run_logger(), pytest.raises(ValueError):
        take_into_use(store, PromoteOptions(**wrong))
