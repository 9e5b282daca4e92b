"""Two promotions at the same moment, and two runs of one training in one home."""

import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from unittest.mock import MagicMock

import pytest
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

from dreamshard.evaluation import PairedComparison
from flows.decisions.contestants import champion_name
from flows.decisions.standing import Standing
from flows.runtime import run_locks
from flows.runtime.retries import passing
from flows.tasks import promotion, stage_inputs
from storage.mlflow_store.alias_changes import ChampionChange
from storage.run_records import report_store
from storage.run_records.report_store import CANDIDATE, EvaluationReport, PlacerFigures
from storage.store import Store, open_store

BETTER = PairedComparison(fits=True, mean_gain=0.05, low=0.01, high=0.09, num_tasks=10)


class Registry:
    """A registry whose readers meet, if they can, before either of them writes."""

    def __init__(self, champion):
        self.aliases, self.meeting = {"champion": champion}, threading.Barrier(2)

    def version_tags(self, _settings, _version):
        return {}

    def tags_by_version(self, _settings):
        return {}

    def champion_of(self, _settings, _topology):
        found = self.aliases.get("champion")
        with suppress(threading.BrokenBarrierError):  # the other one is kept out: as it should be
            self.meeting.wait(timeout=1.0)
        return found

    def settle(self, _store, version, decision):
        self.aliases[decision.alias] = version
        return Standing(alias=decision.alias, words=decision.alias)


@pytest.fixture
def store(monkeypatch, tmp_path) -> Store:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


@pytest.mark.parametrize("rival", [None, "1"])
def test_of_two_promotions_at_once_that_both_beat_what_was_in_use_one_becomes_champion(store, monkeypatch, rival):
    registry, outcomes = Registry(rival), {}
    gains = {"lookup_greedy": BETTER} | ({champion_name(rival): BETTER} if rival else {})
    report = EvaluationReport(
        key="evaluation",
        dataset="d",
        tasks="t",
        testbed="simulated",
        hardware="a test",
        reference="lookup_greedy",
        placers=(PlacerFigures(placer=CANDIDATE, overall_ms=1.0, predicted_ms=1.0, place_ms=1.0),),
        gains={CANDIDATE: gains},
        rows=(),
        rival=rival,
    )
    report_store.save(store.evaluations, report)
    for part in ("registry", "champions", "standing"):
        monkeypatch.setattr(promotion, part, registry)
    monkeypatch.setattr(promotion, "find_veto", lambda *_: None)
    parts = ("checkpoints", "training_effort", "mlflow_tracking", "written_links", "report_pages")
    for part in parts:  # which need a whole training
        monkeypatch.setattr(promotion, part, MagicMock())

    def promote(version):
        outcomes[version] = promotion.promote.fn(store, "run", version, f"training-{version}", "evaluation")

    both = [threading.Thread(target=promote, args=(version,)) for version in ("2", "3")]
    with disable_run_logger():
        for one in both:
            one.start()
        for one in both:
            one.join()
    assert sorted(outcome["alias"] for outcome in outcomes.values()) == ["challenger", "champion"]
    winner = registry.aliases["champion"]
    loser = registry.aliases["challenger"]
    assert outcomes[winner]["alias"] == "champion"
    assert f"not compared with version {winner}" in outcomes[loser]["reason"]


def test_a_promotion_by_hand_waits_for_one_that_is_under_way(store, monkeypatch):
    begun = threading.Event()

    def make_champion(_settings, version, reason, **_):
        begun.set()
        return ChampionChange(version=version, former="1")

    monkeypatch.setattr(promotion.alias_changes, "make_champion", make_champion)
    by_hand = threading.Thread(target=promotion.make_champion.fn, args=(store, "2", ""))
    with disable_run_logger():
        with run_locks.registry_lock(store):
            by_hand.start()
            assert not begun.wait(0.5)
        assert begun.wait(10)
        by_hand.join()


def test_a_second_run_of_a_training_in_one_home_waits_and_another_training_does_not(store):
    begun = {key: threading.Event() for key in ("same", "other")}

    def run(key):
        with run_locks.training_lock(store, key):
            begun[key].set()

    with run_locks.training_lock(store, "same"):
        runs = [threading.Thread(target=run, args=(key,)) for key in begun]
        for each in runs:
            each.start()
        assert begun["other"].wait(10)
        assert not begun["same"].wait(0.3)
    assert begun["same"].wait(10)
    for each in runs:
        each.join()


def test_a_step_on_its_own_waits_for_a_run_of_its_training_and_sees_what_that_has_added(store, monkeypatch):
    complete, found = [1], []
    fields = dict.fromkeys(("config", "sizes", "dataset", "tasks", "start", "bench", "run", "parent"))
    stage = stage_inputs.Stage(**fields, store=store, training="same")
    monkeypatch.setattr(stage_inputs.checkpoints, "last_iteration", lambda _store, key: complete[-1])

    def step():
        with stage.next_iteration() as iteration:
            found.append(iteration)

    with run_locks.training_lock(store, "same"):
        alone = threading.Thread(target=step)
        alone.start()
        alone.join(0.3)
        complete.append(2)
    alone.join(60)
    assert found == [3]


def test_without_a_shared_server_no_limit_is_requested(monkeypatch):
    monkeypatch.setattr(run_locks, "make_limit", lambda name: pytest.fail(f"asked for {name}"))
    with run_locks.host_lock():
        pass


def test_a_server_that_does_not_answer_is_one_sentence_and_is_tried_again(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    address = "http://127.0.0.1:1/api"
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(ConnectionError) as away,
        run_locks.registry_lock(open_store()),
    ):
        pytest.fail("without its turn")
    assert str(away.value).startswith(f"Prefect's server at {address} does not answer")
    assert "unset PREFECT_API_URL" in str(away.value)
    assert passing(away.value)


def test_who_waits_long_for_a_slot_says_so_and_how_a_forgotten_one_is_freed(monkeypatch):
    monkeypatch.setattr(run_locks, "make_limit", lambda _: None)
    said, has_said = [], threading.Event()

    @contextmanager
    def granted_once_it_is_said(_limit, **_):
        assert has_said.wait(60)
        yield

    def announce(sentence):
        said.append((sentence, who.get()))
        has_said.set()

    monkeypatch.setattr(run_locks, "concurrency", granted_once_it_is_said)
    monkeypatch.setattr(run_locks, "announce", announce)
    monkeypatch.setattr(run_locks, "SAID_S", 0.05)
    who = ContextVar("who")
    who.set("this run")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}), run_locks.limit_slot("mine"):
        [(sentence, run)] = said
    assert "`prefect gcl update mine --active-slots 0` frees it" in sentence
    assert run == "this run", "in the log of the run that waits"


def test_who_has_a_slot_says_nothing(monkeypatch):
    monkeypatch.setattr(run_locks, "make_limit", lambda _: None)
    monkeypatch.setattr(run_locks, "concurrency", lambda *_, **__: nullcontext())
    monkeypatch.setattr(run_locks, "announce", lambda _: pytest.fail("it does not wait"))
    monkeypatch.setattr(run_locks, "SAID_S", 0.2)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}), run_locks.limit_slot("mine"):
        time.sleep(0.4)
