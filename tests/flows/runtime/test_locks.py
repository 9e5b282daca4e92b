"""Two promotions at the same moment, and two runs of one training in one home."""

import threading
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

from dreamshard.evaluation import PairedComparison
from flows.runtime import locks
from flows.runtime.retries import passing
from flows.tasks import promotion, stage_inputs

BETTER = vars(PairedComparison(0.05, 0.01, 0.09, 10))


class Registry:
    """A registry whose readers meet, if they can, before either of them writes."""

    def __init__(self, champion):
        self.aliases, self.meeting = {"champion": champion}, threading.Barrier(2)

    def champion(self):
        found = self.aliases.get("champion")
        with suppress(threading.BrokenBarrierError):  # the other one is kept out: as it should be
            self.meeting.wait(timeout=1.0)
        return found

    def set_alias(self, version, decision):
        self.aliases[decision.alias] = version


@pytest.fixture
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setattr(promotion, "publish", lambda *_: None)
    monkeypatch.setattr(promotion, "checkpoints", SimpleNamespace(history=lambda *_: []))
    monkeypatch.setattr(promotion, "report", MagicMock())
    monkeypatch.setattr(promotion, "savings", MagicMock())
    monkeypatch.setattr(promotion.objections, "against", lambda *_: "")
    monkeypatch.setattr(promotion.tracking, "where", lambda *_: {})
    monkeypatch.setattr(promotion.tracking, "log_report", lambda *_: None)


@pytest.mark.parametrize("rival", [None, "1"])
def test_of_two_promotions_at_once_that_both_beat_what_was_in_use_one_becomes_champion(alone, monkeypatch, rival):
    registry, outcomes = Registry(rival), {}
    gains = {"lookup_greedy": BETTER} | ({promotion.evaluations.rival_name(rival): BETTER} if rival else {})
    figures = {"comparisons": gains, "rival": rival, "best_baseline": "lookup_greedy", "testbed": "a test"}
    monkeypatch.setattr(promotion.evaluations, "load", lambda key: figures)
    monkeypatch.setattr(promotion.tracking, "champion", registry.champion)
    monkeypatch.setattr(promotion.tracking, "set_alias", registry.set_alias)

    def promote(version):
        outcomes[version] = promotion.promote.fn("run", version, f"training-{version}", "evaluation")

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


def test_a_promotion_by_hand_waits_for_one_that_is_under_way(monkeypatch, tmp_path):
    begun = threading.Event()

    def make_champion(version, reason):
        begun.set()
        return {"version": version, "former": "1", "reason": reason}

    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setattr(promotion.tracking, "make_champion", make_champion)
    by_hand = threading.Thread(target=promotion.make_champion.fn, args=("2", ""))
    with disable_run_logger():
        with locks.of_registry():
            by_hand.start()
            assert not begun.wait(0.5)
        assert begun.wait(10)
        by_hand.join()


def test_a_second_run_of_a_training_in_one_home_waits_and_another_training_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    begun = {key: threading.Event() for key in ("same", "other")}

    def run(key):
        with locks.of_training(key):
            begun[key].set()

    with locks.of_training("same"):
        runs = [threading.Thread(target=run, args=(key,)) for key in begun]
        for each in runs:
            each.start()
        assert begun["other"].wait(10)
        assert not begun["same"].wait(0.3)
    assert begun["same"].wait(10)
    for each in runs:
        each.join()


def test_a_step_on_its_own_waits_for_a_run_of_its_training_and_sees_what_that_has_added(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    complete, found = [1], []
    monkeypatch.setattr(stage_inputs.steps, "training_key", lambda *_: "same")
    monkeypatch.setattr(stage_inputs.checkpoints, "last_iteration", lambda _store, key: complete[-1])

    def step():
        with stage_inputs.going_on(MagicMock(), MagicMock()) as (_, last):
            found.append(last)

    with locks.of_training("same"):
        alone = threading.Thread(target=step)
        alone.start()
        alone.join(0.3)
        complete.append(2)
    alone.join(60)
    assert found == [2]


def test_without_a_shared_server_no_limit_is_asked_for(monkeypatch):
    monkeypatch.setattr(locks, "make_limit", lambda name: pytest.fail(f"asked for {name}"))
    with locks.of_host():
        pass


def test_a_server_that_does_not_answer_is_one_sentence_and_is_tried_again(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    address = "http://127.0.0.1:1/api"
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(ConnectionError) as away, locks.of_registry():
        pytest.fail("without its turn")
    assert str(away.value).startswith(f"Prefect's server at {address} does not answer")
    assert "unset PREFECT_API_URL" in str(away.value)
    assert passing(away.value)
