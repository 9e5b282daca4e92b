from dataclasses import replace
from functools import cache

import pytest

from dreamshard.hardware.accelerator import hardware
from dreamshard.training import with_algorithm
from flows.rules import contestants as field_of
from flows.rules.contestants import MOST_IN_COLUMNS, Contestants
from storage.mlflow_store import registry
from storage.run_records.report_store import CANDIDATE
from tests.helpers.tables import pool_of, roomy_task, tables_of_dims
from tests.helpers.trained import TINY, learnt_placer, make_placer, start_training, tiny_tasks
from tests.helpers.versions import version_of

VERSION = version_of("models:/m/1")
WHOLE, COLUMNS = "torchrec_planner", "torchrec_planner_columns"
NO_STORE = type("NoStore", (), {"settings": None})()


def of_training(candidate, tasks=None) -> Contestants:
    return field_of.of_training(NO_STORE, candidate, None, tasks or tiny_tasks(), hardware("a100"), 0)


def test_torchrecs_planner_meets_every_candidate():
    pytest.importorskip("torchrec")
    placers = of_training(learnt_placer()).placers
    assert [*placers][-4:] == ["cost_greedy", WHOLE, COLUMNS, CANDIDATE]
    assert placers[WHOLE].spec == placers[COLUMNS].spec == hardware("a100")
    for whole in (replace(learnt_placer(), columns=False), replace(learnt_placer(), inference="policy")):
        assert [*of_training(whole).placers][-2:] == [WHOLE, whole.name]


def test_a_versions_search_goes_on_until_it_stalls():
    placer, (task, *_) = learnt_placer(), tiny_tasks()
    stalled = of_training(placer).placers[CANDIDATE].place(task)
    costs = [float(placer.predict(task, placement).overall_ms()) for placement in (stalled, placer.place(task))]
    assert costs[0] <= costs[1]
    assert of_training(replace(placer, budget_ms=1.0)).placers[CANDIDATE].place(task) == placer.place(task, 1.0)


def test_torchrecs_columns_skip_large_tasks_with_a_note():
    pytest.importorskip("torchrec")
    contestants = of_training(learnt_placer(), [roomy_task(tables_of_dims([4] * (MOST_IN_COLUMNS + 1)), 2)])
    assert COLUMNS not in contestants.placers
    assert contestants.notes[0].startswith("torchrec_planner_columns was left out: a task has 151 tables")


@cache
def autoshard_placer():
    """AutoShard before its first round; what it places by does not matter here."""
    config = with_algorithm(replace(TINY, iterations=1), "autoshard")
    return make_placer(start_training(pool_of(24), config, seed=0))


def compared(monkeypatch, placer, *names: str) -> Contestants:
    """Version 1, whose placer is given, and others."""
    monkeypatch.setattr(registry, "load_placer", lambda *_: placer)
    return field_of.of_entrants(NO_STORE, {"version 1": VERSION} | dict.fromkeys(names), None, 0)


@pytest.mark.parametrize("name", ["cost_greedy", "dreamshard_policy"])
def test_a_placer_without_predicted_costs_is_refused(monkeypatch, name):
    with pytest.raises(ValueError):
        compared(monkeypatch, autoshard_placer(), name, "lookup_greedy")


def test_the_policy_of_a_version_can_be_compared_with_its_search(monkeypatch):
    placers = compared(monkeypatch, learnt_placer(), "dreamshard_policy", "cost_greedy").placers
    assert list(placers) == ["version 1", "dreamshard_policy", "cost_greedy"]
    assert (placers["version 1"].placer.inference, placers["dreamshard_policy"].inference) == ("search", "policy")
    assert placers["dreamshard_policy"].policy is placers["version 1"].placer.policy
    assert placers["dreamshard_policy"].place(tiny_tasks()[0]).is_whole
