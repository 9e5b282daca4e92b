"""What becomes champion, on a real registry: after a person's decision, of other tables, and after an error half way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from prefect.logging import disable_run_logger

from dreamshard.costs import DeviceCosts
from dreamshard.evaluation import EvaluationRow
from dreamshard.placement import Placement
from dreamshard.recipes import RECIPES
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig
from flows import evaluate, promote
from flows.placing.placers import choose
from flows.reports import report_pages
from flows.reports.evaluation_report import make_report
from flows.rules.contestants import champion_name
from flows.rules.warm_start import version_in_use
from flows.watch import in_use_sentence
from storage.mlflow_store import registration, registry, runs, versions
from storage.run_records import report_store, trainings
from storage.run_records.report_store import CANDIDATE, IN_USE
from storage.run_records.trainings import Training
from storage.settings import Settings
from storage.store import open_store
from storage.version_names import number_of
from tests.helpers.tables import tables_of
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

OWN, NAMED = "meta-dlrm-2021", "s3://bucket/tables/"
MODEL = training_of(source=NAMED, num_devices=4)
POOL = tables_of([1000, 2000, 3000, 4000], 16, 1.0, names=("a", "b", "c", "d"))


class Team:
    """Versions that are registered, each of a training of its own, and evaluations that the candidate wins."""

    def __init__(self, home: Path):
        self.settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)})).settings
        self.placer, self.runs = make_placer(start_training(POOL, TrainingConfig(), seed=0)), {}

    def version(self, source: str = OWN, made_of: Training | None = None) -> str:
        training = f"training-{len(self.runs) + 1}"
        made_of = made_of or training_of("cluster", "a machine x2, 2 ranks", source=source)
        trainings.write(open_store(), training, made_of)
        trainings.begin(open_store(), training)
        with runs.chain(self.settings, "retrain") as run:
            tags = {"training": training, "iteration": 1, "dataset": "d"}
            version = registration.register_placer(self.settings, self.placer, run, made_of, tags=tags)
        self.runs[version] = run
        return version

    def promote(
        self,
        version: str,
        error: float | None = None,
        *,
        tryout: bool = False,
        candidate_ms: tuple[float, ...] = (1.0, 1.0, 1.0),
        in_use_ms: float | None = None,
    ) -> dict:
        """As at the end of a retraining: on each of three tasks, dim_greedy costs 2 ms and the champion 1.5.

        Args:
            version: the candidate.
            error: its prediction error.
            tryout: as with `--no-promote`.
            candidate_ms: its cost on each task.
            in_use_ms: cost of the plan in use; None where there is none.
        """
        training = registry.find(self.settings, version).training
        with disable_run_logger():
            rival = evaluate.champion_to_beat.fn(open_store(), training, 1)
        costs = {"random": 3.0, "dim_greedy": 2.0, CANDIDATE: 0.0}
        costs |= {} if rival is None else {champion_name(rival): 1.5}
        costs |= {} if in_use_ms is None else {IN_USE: in_use_ms}
        rows = [row(f"test-{t}", placer, ms or candidate_ms[t]) for t in range(3) for placer, ms in costs.items()]
        key = f"{training} over {rival and rival.number}"
        report = make_report(
            key,
            rows,
            "dim_greedy",
            {},
            dataset="d",
            tasks="t",
            testbed="simulated",
            hardware="a machine",
            training=training,
            iteration=1,
            rival=rival and rival.uri,
        )
        figures = [replace(line, predicted_mape=error) if line.placer == CANDIDATE else line for line in report.placers]
        report_store.save(open_store(), replace(report, placers=tuple(figures)))
        with disable_run_logger():
            return promote.decide_standing.fn(open_store(), self.runs[version], version, key, tryout=tryout)

    @property
    def champion(self) -> str | None:
        found = registry.champion(self.settings)
        return found and found.uri


def row(task: str, placer: str, ms: float) -> EvaluationRow:
    placement, first = Placement.whole(torch.tensor([0, 1]), 2), int(task[-1])
    costs = DeviceCosts.from_phases(torch.full((2, 4), ms / 4))
    tables = POOL.select([first, first + 1])
    return EvaluationRow(placer, PlacementTask(tables, 2, 2**30, name=task), placement, (ms,), ms, 0.1, costs)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    home = tmp_path_factory.mktemp("team")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DREAMSHARD_HOME", str(home))
        patch.setattr(report_pages, "plots", lambda *_: {})  # a second of every promotion
        yield Team(home)


@pytest.fixture
def champion(team: Team) -> Callable[[str], str]:
    """A new version in use, trained on the source given."""

    def make(source: str = OWN) -> str:
        version = team.version(source)
        registry.set_alias(team.settings, version, "champion", "for the test")
        return version

    return make


def test_a_champion_that_was_taken_out_by_hand_stays_out_until_it_is_put_back_by_hand(team: Team, champion):
    first, second = champion(), team.version()
    assert team.promote(second)["alias"] == "champion"
    registry.make_champion(team.settings, "previous", "slow in production", "ann")
    for _night in range(2):
        outcome = team.promote(second)
        assert outcome["alias"] == "challenger"
        assert outcome["reason"].startswith("taken out of use by hand at 20")
        assert (
            f"`dreamshard promote {second}` uses it again; its figures: beats the champion: +33.3%" in outcome["reason"]
        )
        assert team.champion == first
    third = team.version()
    assert team.promote(third)["alias"] == "champion", "a new training competes as ever"
    assert team.promote(second)["alias"] == "challenger"
    registry.make_champion(team.settings, second, "mended", "ann")
    assert team.champion == second
    fourth = team.version()
    assert team.promote(fourth)["alias"] == "champion"
    assert team.promote(second)["alias"] == "champion", "an evaluation took it out this time, so one may bring it back"


def test_a_version_that_predicts_badly_is_not_promoted_in_silence_but_a_person_may(team: Team, champion):
    in_use, candidate = champion(), team.version()
    outcome = team.promote(candidate, error=0.82)
    assert (outcome["alias"], outcome["prediction_error"]) == ("challenger", 0.82)
    assert "82% off on held-out placements" in outcome["reason"]
    assert f"`dreamshard promote {candidate}`" in outcome["reason"]
    assert team.champion == in_use
    assert team.promote(team.version(), error=0.19)["alias"] == "champion"
    registry.make_champion(team.settings, candidate, "it places well", "ann")
    assert team.champion == candidate


def test_a_recipes_own_tables_do_not_take_the_place_of_tables_that_somebody_named(team: Team, champion):
    named, own = champion(NAMED), team.version(OWN)
    outcome = team.promote(own)
    assert outcome["alias"] == "challenger"
    for word in (
        f"trained on {OWN}",
        f"version {number_of(named)} was trained on {NAMED}",
        f"`dreamshard promote {own}`",
    ):
        assert word in outcome["reason"]
    assert team.champion == named
    assert team.promote(team.version(NAMED))["alias"] == "champion"


def test_a_champion_has_its_report_also_where_an_error_came_after_the_alias(team: Team, champion, monkeypatch):
    champion()
    version = team.version()
    with monkeypatch.context() as patch:
        patch.setattr(report_pages, "html_page", lambda *_: (_ for _ in ()).throw(OSError("the server is away")))
        with pytest.raises(OSError, match="away"):
            team.promote(version)
    assert team.champion == version
    team.promote(version)
    assert promote.mlflow_tracking.has_report(open_store(), registry.find(team.settings, version))
    assert "Held-out tasks on a machine" in registry.find(team.settings, version).description
    monkeypatch.setattr(promote.mlflow_tracking, "log_report", lambda *_: pytest.fail("written once more"))
    team.promote(version)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """A registry of its own."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(report_pages, "plots", lambda *_: {})
    return Team(tmp_path / "home")


def test_a_short_run_on_a_simulated_gpu_leaves_the_champion_that_was_measured_on_ranks(fresh: Team):
    ranks, model = "a machine x2, 2 ranks · 2 devices", "simulated rtx2080ti · 4 devices"
    first, second = fresh.version(NAMED), fresh.version(made_of=MODEL)
    assert fresh.promote(first)["standing"] == f"champion of {ranks}"
    outcome = fresh.promote(second)
    assert (outcome["alias"], outcome["standing"]) == ("champion", f"champion of {model}")
    assert outcome["reason"].startswith("first champion: ")
    assert f"`dreamshard promote {second}` makes it mean this one" in outcome["note"]
    assert fresh.champion == first
    third = fresh.version(made_of=MODEL)
    outcome = fresh.promote(third)
    assert outcome["reason"].startswith("beats the champion: +33.3% measured cost saved")
    assert "champion version 1" in outcome["reason"], "the champion of its own hardware"
    assert {each.uri for each in registry.versions(fresh.settings) if each.is_champion} == {first, third}
    promote.replace_champion(open_store(), third, "we plan for it")
    assert fresh.champion == third

    fourth = fresh.version(NAMED)
    tried = fresh.promote(fourth, tryout=True)
    assert (tried["alias"], tried["standing"]) == ("none", "a try-out")
    assert f"`dreamshard promote {fourth}`" in tried["note"]
    known = registry.versions(fresh.settings)
    assert {each.uri for each in known if each.is_champion} == {first, third}
    assert [each.uri for each in known if each.is_tryout] == [fourth]


def test_a_first_champion_without_evidence_is_provisional_in_words_that_everyone_sees(
    fresh: Team, caplog: pytest.LogCaptureFixture
):
    unclear = fresh.promote(fresh.version(NAMED), candidate_ms=(1.5, 2.4, 1.8))
    assert (unclear["alias"], unclear["standing"]) == (
        "champion",
        "provisional champion of a machine x2, 2 ranks · 2 devices",
    )
    figures = "+5.0% measured cost saved (95 % interval -51.9% to +61.9%, 3 held-out tasks) against dim_greedy"
    note = f"provisional: not yet shown to be cheaper than a rule of thumb ({figures}, the best rule of thumb)"
    assert figures in unclear["reason"]
    assert versions.version(fresh.settings, "1")["standing"] == "champion, provisional"
    chosen = choose(open_store(), None, PlacementTask(POOL, 2, 2**30), None, note=lambda _: None)
    assert chosen.caveat == f"champion is {note}"
    priced = choose(open_store(), "dim_greedy", PlacementTask(POOL, 2, 2**30), None, note=lambda _: None)
    assert priced.caveat == chosen.caveat, "it predicts what the rule's placement costs"
    caplog.clear()
    registry.load_placer("champion", fresh.settings)
    assert caplog.text == "", "commands say it themselves"
    registry.load_placer("champion")
    assert f"/1 is {note}" in caplog.text
    config = RECIPES["smoke"]
    assert note in in_use_sentence(version_in_use(open_store(), replace(config, testbed="cluster")))

    still = fresh.promote(fresh.version(NAMED), candidate_ms=(1.5, 2.4, 1.4))
    assert still["alias"] == "challenger", "no better shown than the provisional champion is"
    shown = fresh.promote(fresh.version(NAMED), candidate_ms=(1.1, 1.6, 1.3))
    assert shown["standing"].startswith("champion of")
    assert shown["reason"].startswith("replaces version 1, a provisional champion, without costing more: +33.3%")
    assert versions.version(fresh.settings, "3")["standing"] == "champion"
    assert versions.version(fresh.settings, "1")["standing"] == "previous"
    assert choose(open_store(), "1", PlacementTask(POOL, 2, 2**30), None, note=lambda _: None).why == ""


@pytest.mark.parametrize(("in_use_ms", "is_cheaper"), [(0.5, True), (3.0, False), (None, False)])
def test_a_plan_in_use_that_is_cheaper_than_the_new_placement_is_said_to_be(team: Team, in_use_ms, is_cheaper):
    note = team.promote(team.version(), in_use_ms=in_use_ms)["note"]
    assert ("the plan in use is cheaper than its placement (-100.0 %" in note) == is_cheaper
