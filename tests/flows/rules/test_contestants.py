"""Who takes part in an evaluation."""

from dataclasses import replace
from functools import cache

import pytest

from dreamshard.hardware.accelerator import hardware
from dreamshard.search.baselines import GreedyPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.training import with_algorithm
from flows.rules import contestants as field_of
from flows.rules.contestants import MOST_IN_COLUMNS, Contestants, with_torchrec_planner
from storage.mlflow_store import registry
from storage.run_records.report_store import CANDIDATE
from storage.store import open_store
from tests.helpers.tables import pool_of, roomy_task, tables_of_dims
from tests.helpers.trained import TINY, learnt_placer, make_placer, start_training, tiny_tasks
from tests.helpers.versions import version_of

VERSION = version_of("models:/m/1")


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


def test_torchrecs_planner_meets_every_candidate_before_the_candidate_is_measured():
    candidate = GreedyPlacer("size_greedy")
    field = Contestants(
        placers={"dim_greedy": GreedyPlacer("dim_greedy"), CANDIDATE: candidate},
        predictors={CANDIDATE: candidate},
        candidate=CANDIDATE,
        versions={},
    )
    tasks = [roomy_task(tables_of_dims([8, 16, 32]), 2)]
    spec = hardware("a100")
    contestants = with_torchrec_planner(field, tasks, spec)
    assert list(contestants.placers) == ["dim_greedy", "torchrec_planner", CANDIDATE]
    planner = contestants.placers["torchrec_planner"]
    assert planner.spec == spec
    versions = Contestants(
        placers={"version 1": candidate}, predictors={"version 1": candidate}, versions={"version 1": VERSION}
    )
    assert with_torchrec_planner(versions, tasks, spec) == versions
    tight = [PlacementTask(tables_of_dims([8, 8, 8], rows=100), 2, 4900)]
    assert "torchrec_planner" not in with_torchrec_planner(field, tight, None).placers


def field_with(candidate) -> Contestants:
    return Contestants(
        placers={"dim_greedy": GreedyPlacer("dim_greedy"), CANDIDATE: candidate},
        predictors={},
        candidate=CANDIDATE,
        versions={},
    )


def test_torchrecs_planner_may_split_tables_where_the_candidate_may():
    pytest.importorskip("torchrec")
    tasks = tiny_tasks()
    both = ["dim_greedy", "torchrec_planner", "torchrec_planner_columns", CANDIDATE]
    assert list(with_torchrec_planner(field_with(learnt_placer()), tasks, None).placers) == both
    for whole in (replace(learnt_placer(), columns=False), replace(learnt_placer(), inference="policy")):
        placers = with_torchrec_planner(field_with(whole), tasks, None).placers
        assert list(placers) == ["dim_greedy", "torchrec_planner", CANDIDATE]


def test_torchrecs_planner_of_columns_is_left_out_of_large_tasks_and_a_note_says_so():
    pytest.importorskip("torchrec")
    field = field_with(learnt_placer())
    tasks = [roomy_task(tables_of_dims([4] * (MOST_IN_COLUMNS + 1)), 2)]
    contestants = with_torchrec_planner(field, tasks, None)
    assert list(contestants.placers) == ["dim_greedy", "torchrec_planner", CANDIDATE]
    assert contestants.notes[0].startswith("torchrec_planner_columns was left out: a task has 151 tables")
    named = replace(field, placers={"torchrec_planner_columns": candidate_of(field), **field.placers})
    assert "torchrec_planner_columns" in with_torchrec_planner(named, tasks, None).placers, "it was asked for"


def candidate_of(field: Contestants):
    return field.placers[CANDIDATE]


def compared(store, monkeypatch, *names: str) -> Contestants:
    """Version 1 and others."""
    monkeypatch.setattr(registry, "load_placer", lambda *_: learnt_placer())
    return field_of.of_versions(store, {"version 1": VERSION} | dict.fromkeys(names), 0)


@cache
def autoshard_placer():
    """AutoShard before its first round; what it places by does not matter here."""
    config = with_algorithm(replace(TINY, iterations=1), "autoshard")
    return make_placer(start_training(pool_of(24), config, seed=0))


def test_rivals_that_need_no_predicted_costs_meet_a_training_of_autoshard():
    contestants = field_of.of_training(autoshard_placer(), None, None, seed=0, rivals=True)
    assert {"lookup_greedy", "autoshard"} <= contestants.placers.keys()
    assert {"neuroshard", "neuroshard_columns", "cost_greedy"}.isdisjoint(contestants.placers)
    assert contestants.notes[0].startswith("neuroshard and neuroshard_columns were left out")


@pytest.mark.parametrize("name", ["neuroshard_columns", "cost_greedy", "dreamshard_policy"])
def test_a_rival_that_is_named_and_lacks_predicted_costs_is_refused(store, monkeypatch, name):
    monkeypatch.setattr(registry, "load_placer", lambda *_: autoshard_placer())
    versions = {"version autoshard:1": VERSION, name: None, "lookup_greedy": None}
    with pytest.raises(ValueError, match=f"^{name} would use a network that predicts what steps cost"):
        field_of.of_versions(store, versions, 0)


def test_the_policy_of_a_version_can_be_compared_with_its_search(store, monkeypatch):
    placers = compared(store, monkeypatch, "dreamshard_policy", "cost_greedy").placers
    assert list(placers) == ["version 1", "dreamshard_policy", "cost_greedy"]
    assert (placers["version 1"].inference, placers["dreamshard_policy"].inference) == ("search", "policy")
    assert placers["dreamshard_policy"].policy is placers["version 1"].policy
    assert placers["dreamshard_policy"].place(tiny_tasks()[0]).is_whole
