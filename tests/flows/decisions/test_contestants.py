"""Who takes part in an evaluation, and a champion that cannot be read."""

from dataclasses import replace
from functools import cache

import pytest

from dreamshard.hardware.accelerator import hardware
from dreamshard.rivals import OF_TORCHREC, rival
from dreamshard.search import PARTS
from dreamshard.search.baselines import GreedyPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.training import with_algorithm
from flows.decisions import contestants as field_of
from flows.decisions.contestants import Contestants, champion_placer
from flows.decisions.rivals import RivalInputs
from flows.decisions.torchrec_planners import MOST_IN_COLUMNS, with_torchrec_planner
from storage.mlflow_store import registry
from storage.run_records.report_store import CANDIDATE
from storage.store import open_store
from tests.helpers.tables import pool_of, roomy_task, tables_of_dims
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, learnt_placer, make_placer, start_training, tiny_tasks


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


def test_a_champion_that_cannot_be_read_is_an_error_and_not_beaten(store, monkeypatch):
    def unreadable(*_):
        raise ValueError("the files of version 3 cannot be read") from PermissionError("403")

    monkeypatch.setattr(registry, "load_placer", unreadable)
    assert champion_placer(store, None) is None
    with pytest.raises(ValueError, match="cannot be read"):
        champion_placer(store, "3")


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
    assert contestants.placers["torchrec_planner"].spec == spec
    versions = Contestants(
        placers={"version 1": candidate}, predictors={"version 1": candidate}, versions={"version 1": "1"}
    )
    assert with_torchrec_planner(versions, tasks, spec) is versions
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


@pytest.mark.parametrize("memory_bytes", [6400, 7000, 9000])
def test_where_torchrecs_planner_finds_room_for_whole_tables_it_does_in_columns(memory_bytes):
    pytest.importorskip("torchrec")
    tasks = [PlacementTask(tables_of_dims([8, 8, 16, 16, 32], rows=40), 2, memory_bytes)]
    whole, columns = (bool(field_of.without_room({name: rival(name, None)}, tasks)) for name in OF_TORCHREC)
    assert whole or not columns


def compared(store, monkeypatch, inputs: RivalInputs, *names: str) -> Contestants:
    """Version 1 and others."""
    monkeypatch.setattr(registry, "load_placer", lambda *_: learnt_placer())
    return field_of.of_versions(store, {"version 1": "1"} | dict.fromkeys(names), inputs, 0)


def test_rnn_measures_as_many_placements_as_the_version_learned_from(store, monkeypatch):
    calls = []

    def measure(task, placement):
        calls.append(placement)
        return simulated().measure(task, placement)

    inputs = RivalInputs(train_tasks=tiny_tasks(), measured=12, measure=measure)
    contestants = compared(store, monkeypatch, inputs, "rnn", "neuroshard", "neuroshard_columns", "lookup_greedy")
    assert list(contestants.placers) == ["version 1", "rnn", "neuroshard", "neuroshard_columns", "lookup_greedy"]
    assert len(calls) == contestants.placers["rnn"].num_measurements == 12
    assert contestants.learnt_from == {"version 1": 12, "rnn": 12}


@cache
def autoshard_placer():
    """AutoShard before its first round; what it places by does not matter here."""
    config = with_algorithm(replace(TINY, iterations=1), "autoshard")
    return make_placer(start_training(pool_of(24), config, seed=0))


def test_rivals_that_need_no_predicted_costs_meet_a_training_of_autoshard():
    inputs = RivalInputs(train_tasks=tiny_tasks(), measured=12, measure=simulated().measure, may_leave_out=True)
    contestants = field_of.of_training(autoshard_placer(), None, None, inputs, seed=0)
    assert {"rnn", "lookup_greedy", "autoshard"} <= contestants.placers.keys()
    assert {"neuroshard", "neuroshard_columns", "cost_greedy"}.isdisjoint(contestants.placers)
    assert contestants.notes[0].startswith("neuroshard and neuroshard_columns were left out")
    assert contestants.placers["rnn"].place(tiny_tasks()[0]).num_devices == 2
    assert contestants.learnt_from == {"autoshard": 12, "rnn": 12}


@pytest.mark.parametrize("name", ["neuroshard_columns", "cost_greedy", "dreamshard_policy"])
def test_a_rival_that_is_named_and_lacks_predicted_costs_is_refused(store, monkeypatch, name):
    monkeypatch.setattr(registry, "load_placer", lambda *_: autoshard_placer())
    versions = {"version autoshard:1": "autoshard:1", name: None, "lookup_greedy": None}
    with pytest.raises(ValueError, match=f"^{name} would use a network that predicts what steps cost"):
        field_of.of_versions(store, versions, RivalInputs(may_leave_out=name in PARTS), 0)


def test_the_policy_of_a_version_can_be_compared_with_its_search(store, monkeypatch):
    placers = compared(store, monkeypatch, RivalInputs(), "dreamshard_policy", "cost_greedy").placers
    assert list(placers) == ["version 1", "dreamshard_policy", "cost_greedy"]
    assert (placers["version 1"].inference, placers["dreamshard_policy"].inference) == ("search", "policy")
    assert placers["dreamshard_policy"].policy is placers["version 1"].policy
    assert placers["dreamshard_policy"].place(tiny_tasks()[0]).is_whole


def test_every_planner_of_torchrec_assumes_the_bandwidths_of_the_testbed(store, monkeypatch):
    pytest.importorskip("torchrec")
    contestants = compared(store, monkeypatch, RivalInputs(), "torchrec_planner", "torchrec_planner_columns")
    spec = hardware("a100")
    known = with_torchrec_planner(contestants, tiny_tasks(), spec)
    assert {placer.spec for name, placer in known.placers.items() if name != "version 1"} == {spec}
    assert not known.has_default_bandwidths
    assert with_torchrec_planner(contestants, tiny_tasks(), None).has_default_bandwidths
