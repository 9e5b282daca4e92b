from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from prefect.logging import disable_run_logger

from dreamshard.costs import DeviceCosts
from dreamshard.evaluation import EvaluationRow
from dreamshard.recipes import RECIPES
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig
from flows import evaluate, promote
from flows.forms.options import PromoteOptions
from flows.placing.placers import choose
from flows.reports import pages
from flows.reports.evaluation_report import make_report
from flows.rules.contestants import champion_name
from flows.rules.promotion import find_veto
from flows.rules.warm_start import champion_of
from flows.watch import champion_sentence
from storage.mlflow_store import registry, runs
from storage.run_records import report_store, trainings
from storage.run_records.report_store import CANDIDATE, CURRENT_PLAN
from storage.run_records.trainings import Training
from storage.store import Settings, open_store
from tests.helpers.samples import MEASURED
from tests.helpers.tables import tables_of
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of, version_of

OWN, NAMED = "meta-dlrm-2021", "s3://bucket/tables/"
MODEL, RANKS = training_of(num_devices=4), training_of("cluster", "a machine x2, 2 ranks")
POOL = tables_of([1000, 2000, 3000, 4000], 16, 1.0, names=("a", "b", "c", "d"))


class Team:
    """Versions that are registered, each of a training of its own, and evaluations that the candidate wins."""

    def __init__(self, home: Path):
        self.store = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)}))
        self.runs = {}
        self.placer = make_placer(start_training(POOL, TrainingConfig(), seed=0))

    def version(self, source: str = OWN, made_of: Training = RANKS) -> str:
        training, made_of = f"training-{len(self.runs) + 1}", with_source(made_of, source)
        trainings.write(self.store, training, made_of)
        with runs.open_run(self.store, "retrain") as run:
            tags = {"training": training, "iteration": 1, "dataset": "d"}
            version = runs.register_placer(self.store, self.placer, run, made_of, tags=tags)
        self.runs[version] = run
        return version

    def promote(
        self,
        version: str,
        error: float | None = None,
        *,
        candidate_ms: tuple[float, ...] = (1.0, 1.0, 1.0),
        current_ms: float | None = None,
    ) -> dict:
        """As at the end of a retraining: on each of three tasks, dim_greedy costs 2 ms and the champion 1.5."""
        training = registry.find(self.store, version).training
        rival = evaluate.champion_to_beat(self.store, training, 1)
        costs = {"random": 3.0, "dim_greedy": 2.0, CANDIDATE: 0.0}
        costs |= {} if rival is None else {champion_name(rival): 1.5}
        costs |= {} if current_ms is None else {CURRENT_PLAN: current_ms}
        rows = [row(f"test-{t}", placer, ms or candidate_ms[t]) for t in range(3) for placer, ms in costs.items()]
        about = {"dataset": "d", "tasks": "t", "training": training, "iteration": 1, **MEASURED}
        key = f"{training} over {rival and rival.number}"
        report = make_report(rows, "dim_greedy", {}, key=key, rival=rival and rival.uri, **about)
        figures = [replace(line, predicted_mape=error) if line.placer == CANDIDATE else line for line in report.placers]
        report_store.save(self.store, replace(report, placers=tuple(figures)))
        return promote.register_and_decide.fn(self.store, self.runs[version], training, key)

    @property
    def champion(self) -> str | None:
        version = registry.champion(self.store)
        return version and version.uri


def with_source(made_of: Training, source: str) -> Training:
    return replace(made_of, recipe=replace(made_of.recipe, workload=replace(made_of.recipe.workload, source=source)))


def row(task: str, placer: str, ms: float) -> EvaluationRow:
    placement, first = Placement.whole(torch.tensor([0, 1]), 2), int(task[-1])
    costs = DeviceCosts(torch.full((2, 4), ms / 4))
    tables = POOL.select([first, first + 1])
    return EvaluationRow(placer, PlacementTask(tables, 2, 2**30, name=task), placement, ms, ms, 0.1, costs)


def new_team(home: Path) -> Iterator[Team]:
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("DREAMSHARD_HOME", str(home))
        yield Team(home)


@pytest.fixture(scope="module")
def team(mlflow_home: Callable[[], Path]) -> Iterator[Team]:
    yield from new_team(mlflow_home())


@pytest.fixture
def fresh(mlflow_home: Callable[[], Path]) -> Iterator[Team]:
    """A registry of its own."""
    yield from new_team(mlflow_home())


def test_a_champion_removed_by_hand_returns_only_by_hand(team: Team):
    first, second = team.version(), team.version()
    registry.set_alias(team.store, first, "champion", "for the test")
    assert team.promote(second)["alias"] == "champion"
    registry.make_champion(team.store, "previous", "slow in production", "ann")
    for _night in range(2):
        outcome = team.promote(second)
        assert outcome["alias"] == "challenger"
        assert outcome["reason"].startswith("replaced manually at 20")
        assert (
            f"`dreamshard promote {second}` uses it again; its figures: beats the champion: +33.3 %"
            in outcome["reason"]
        )
        assert team.champion == first
    third = team.version()
    assert team.promote(third)["alias"] == "champion", "a new training competes as ever"
    assert team.promote(second)["alias"] == "challenger"
    registry.make_champion(team.store, second, "mended", "ann")
    assert team.champion == second
    fourth = team.version()
    assert team.promote(fourth, error=0.82)["reason"].startswith("its predictions are 82% off")
    assert team.promote(fourth)["alias"] == "champion"
    assert team.promote(second)["alias"] == "champion", "an evaluation took it out this time, so one may bring it back"


@pytest.mark.parametrize(("has_champion", "error"), [(True, 0.19), (True, 0.82), (True, None), (False, 0.82)])
def test_bad_predictions_need_a_person_unless_a_version_is_the_first(has_champion, error):
    champion = version_of("models:/m/1", RANKS) if has_champion else None
    veto = find_veto(version_of("models:/m/2", RANKS), champion, error)
    assert ("`dreamshard promote models:/m/2`" in veto, veto == "") == (has_champion and error == 0.82, not veto)


def test_a_champion_has_its_report_even_after_a_late_error(team: Team, monkeypatch):
    version = team.version()
    with monkeypatch.context() as patch:
        patch.setattr(pages, "html_page", lambda *_: (_ for _ in ()).throw(OSError("the server is away")))
        with pytest.raises(OSError):
            team.promote(version)
    assert team.champion == version
    team.promote(version)
    assert "Held-out tasks on a machine" in registry.find(team.store, version).description
    monkeypatch.setattr(promote, "log_report", lambda *_: pytest.fail("written once more"))
    team.promote(version)


def test_a_simulated_run_leaves_the_champion_measured_on_ranks(fresh: Team):
    ranks, model = "a machine x2, 2 ranks · 2 devices", "simulated rtx2080ti · 4 devices"
    first, second = fresh.version(NAMED), fresh.version(NAMED, MODEL)
    assert fresh.promote(first)["standing"] == f"champion of tables on {ranks}"
    outcome = fresh.promote(second)
    assert (outcome["alias"], outcome["standing"]) == ("champion", f"champion of tables on {model}")
    assert outcome["reason"].startswith("first champion: ")
    assert f"`dreamshard promote {second}` makes it mean this one" in outcome["note"]
    assert fresh.champion == first
    third = fresh.version(NAMED, MODEL)
    outcome = fresh.promote(third)
    assert outcome["reason"].startswith("beats the champion: +33.3 % (")
    assert "against champion version 1" in outcome["reason"], "the champion of its own hardware"
    assert {version.uri for version in registry.versions(fresh.store) if version.is_champion} == {first, third}
    promote.take_into_use(fresh.store, PromoteOptions(version=third, reason="we plan for it"))
    assert fresh.champion == third


def test_a_first_champion_without_evidence_is_provisional(fresh: Team, caplog: pytest.LogCaptureFixture):
    unclear = fresh.promote(fresh.version(NAMED), candidate_ms=(1.5, 2.4, 1.8))
    assert unclear["alias"] == "champion"
    assert unclear["standing"].startswith("provisional champion")
    note = registry.find(fresh.store, "1").provisional
    assert note
    assert registry.version_in_full(fresh.store, "1")["standing"] == "champion, provisional"
    chosen = choose(fresh.store, None, PlacementTask(POOL, 2, 2**30), None, note=lambda _: None)
    assert note in chosen.caveat
    priced = choose(fresh.store, "dim_greedy", PlacementTask(POOL, 2, 2**30), None, note=lambda _: None)
    assert priced.caveat == chosen.caveat, "it predicts what the rule's placement costs"
    caplog.clear()
    registry.load_placer("champion", fresh.store)
    assert caplog.text == "", "commands say it themselves"
    registry.load_placer("champion")
    assert note in caplog.text
    config = replace(RECIPES["smoke"], model="tables", testbed="cluster")
    assert note in champion_sentence(champion_of(fresh.store, config))

    still = fresh.promote(fresh.version(NAMED), candidate_ms=(1.5, 2.4, 1.4))
    assert still["alias"] == "challenger", "no better shown than the provisional champion is"
    shown = fresh.promote(fresh.version(NAMED), candidate_ms=(1.3, 1.35, 1.3))
    assert shown["standing"].startswith("champion of")
    assert shown["reason"].startswith("replaces version 1, a provisional champion, without costing more: +34.2 %")
    assert registry.version_in_full(fresh.store, "3")["standing"] == "champion"
    assert registry.version_in_full(fresh.store, "1")["standing"] == "previous"
    assert choose(fresh.store, "1", PlacementTask(POOL, 2, 2**30), None, note=lambda _: None).why == ""


@pytest.mark.parametrize(("current_ms", "is_cheaper"), [(0.5, True), (3.0, False), (None, False)])
def test_a_current_plan_cheaper_than_the_new_one_is_reported(team: Team, current_ms, is_cheaper):
    note = team.promote(team.version(), current_ms=current_ms)["note"]
    assert ("the current plan is cheaper than its placement (-100.0 %" in note) == is_cheaper


@pytest.mark.parametrize(("iteration", "training", "has_rival"), [(2, "t", False), (3, "t", True), (2, "u", True)])
def test_a_candidate_does_not_compete_with_itself_as_champion(team: Team, monkeypatch, iteration, training, has_rival):
    trainings.write(team.store, training, training_of())
    monkeypatch.setattr(registry, "champion", lambda *_: version_of("models:/m/1", training="t", iteration="2"))
    assert (evaluate.champion_to_beat(team.store, training, iteration) is not None) is has_rival
