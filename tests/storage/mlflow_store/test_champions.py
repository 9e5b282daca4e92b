"""Champions of topologies and the alias `champion` on a real registry."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient

from storage.mlflow_store import alias_changes, champions, registration, registry, runs
from storage.mlflow_store.alias_changes import make_champion, set_alias, set_reason, set_standing
from storage.mlflow_store.alias_history import history
from storage.settings import Settings

RANKS, MODEL = "a machine · 2 devices", "simulated h100 · 2 devices"
SETTINGS = {RANKS: ("cluster", "a machine"), MODEL: ("simulated", "simulated h100")}


@pytest.fixture
def version(mlflow_settings: Settings, placer_folder: Path):
    """A function that registers a version of a topology and returns its number."""

    def make(topology: str) -> str:
        testbed, hardware = SETTINGS[topology]
        origin = json.dumps({"setting": {"testbed": testbed, "hardware": hardware, "devices": 2}})
        with runs.chain(mlflow_settings, "retrain") as run:
            return registration.register_placer(mlflow_settings, placer_folder, run, tags={"origin": origin})

    return make


def test_each_topology_has_a_champion_and_undoing_restores_the_one_that_was_displaced(
    version, mlflow_settings: Settings
):
    for topology in (RANKS, MODEL, MODEL):
        version(topology)
    set_alias(mlflow_settings, "1", "champion", "the first")
    set_standing(mlflow_settings, "2", "champion", "the first of its kind")
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "2"}
    assert registry.aliases(mlflow_settings) == {"champion": "1"}
    make_champion(mlflow_settings, "3", "a hunch", "ann")
    assert registry.aliases(mlflow_settings) == {"champion": "3", "previous": "1"}
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "3"}
    tagged = {number: tags.get("champion_of") for number, tags in registry.tags_by_version(mlflow_settings).items()}
    assert tagged == {"1": RANKS, "2": None, "3": MODEL}
    make_champion(mlflow_settings, "previous", "it was wrong", "ann")
    assert registry.aliases(mlflow_settings) == {"champion": "1", "previous": "3"}
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "2"}
    tags = registry.version_tags(mlflow_settings, "2")
    assert [change.standing for change in history(tags)] == [
        f"{alias} of {MODEL}" for alias in ("champion", "previous", "champion")
    ]
    assert tags["topology"] == MODEL


@contextmanager
def cut_off(owner: object, names: Sequence[str], number: int) -> Iterator[None]:
    """Where the given call of any of these functions, counted from 0, is the first that is not made."""
    left = [number]

    def counted(write: Callable[..., None]) -> Callable[..., None]:
        def made(*args: object, **named: object) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            write(*args, **named)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


def test_a_change_cut_off_at_any_write_is_made_again_to_the_same_end_while_the_clock_goes_back(
    version, mlflow_settings: Settings, monkeypatch
):
    for topology in (RANKS, MODEL, MODEL):
        version(topology)
    clock = (datetime(2026, 1, 1, tzinfo=UTC) - timedelta(hours=hour) for hour in range(1000))
    monkeypatch.setattr(alias_changes, "_now", lambda: f"{next(clock):%Y-%m-%d %H:%M:%S} UTC")
    set_alias(mlflow_settings, "1", "champion", "the first")
    set_standing(mlflow_settings, "2", "champion", "the first of its kind")
    holder, rival, cut = "2", "3", 0
    while cut >= 0:
        before = {number: history(tags) for number, tags in registry.tags_by_version(mlflow_settings).items()}
        try:
            with cut_off(alias_changes, ("tag", "untag"), cut):
                set_standing(mlflow_settings, rival, "champion", "cheaper")
            assert cut > 5
            cut = -1
        except KeyboardInterrupt:
            assert champions.champion_of(mlflow_settings, MODEL) == holder, f"cut off at write {cut}"
            set_standing(mlflow_settings, rival, "champion", "cheaper")
            cut += 1
        known = registry.tags_by_version(mlflow_settings)
        assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: rival}
        assert {number: tags.get("champion_of") for number, tags in known.items()} == {
            "1": RANKS,
            rival: MODEL,
            holder: None,
        }
        assert known[rival]["reason"] == "cheaper"
        won, lost = history(known[rival]), history(known[holder])
        assert [len(won), len(lost)] == [len(before[rival]) + 1, len(before[holder]) + 1]
        assert (won[-1].alias, won[-1].displaced, lost[-1].replaced_by) == ("champion", holder, rival)
        holder, rival = rival, holder


WRITES = ("set_model_version_tag", "set_registered_model_alias", "delete_model_version_tag", "update_model_version")


def undone_but_cut_off_after(cut: int, settings: Settings) -> bool:
    """Whether undoing was cut off at that write, and then made again."""
    now = registry.champion(settings)
    try:
        with cut_off(MlflowClient, WRITES, cut):
            make_champion(settings, "previous", "it was wrong", "ann")
        return False
    except KeyboardInterrupt:
        assert registry.champion(settings) == now, f"cut off at write {cut}"
        make_champion(settings, "previous", "it was wrong", "ann")
        return True


def test_undoing_that_was_cut_off_after_any_write_is_made_again(version, mlflow_settings: Settings):
    for topology in (RANKS, RANKS):
        version(topology)
    make_champion(mlflow_settings, "1", "the first", "ann")
    make_champion(mlflow_settings, "2", "a hunch", "ann")
    now, other, cut, was_cut = "2", "1", 0, True
    while was_cut:
        was_cut = undone_but_cut_off_after(cut, mlflow_settings)
        assert registry.aliases(mlflow_settings) == {"champion": other, "previous": now}
        now, other, cut = other, now, cut + 1
    assert cut > 8


def test_undoing_restores_the_displaced_champion_of_another_topology_wherever_it_was_cut_off(
    version, mlflow_settings: Settings
):
    for topology in (RANKS, MODEL, MODEL):
        version(topology)
    set_alias(mlflow_settings, "1", "champion", "the first")
    set_standing(mlflow_settings, "2", "champion", "the first of its kind")
    cut, was_cut = 0, True
    while was_cut:
        make_champion(mlflow_settings, "3", f"hunch {cut}", "ann")
        assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "3"}
        was_cut = undone_but_cut_off_after(cut, mlflow_settings)
        known = registry.tags_by_version(mlflow_settings)
        assert registry.aliases(mlflow_settings) == {"champion": "1", "previous": "3"}
        assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "2"}, f"cut off at write {cut}"
        tagged = {number: tags.get("champion_of") for number, tags in known.items()}
        assert tagged == {"1": RANKS, "2": MODEL, "3": None}, f"cut off at write {cut}"
        cut += 1
        once = [f"{alias} of {MODEL}" for alias in ("champion", *("previous", "champion") * cut)]
        assert [change.standing for change in history(known["2"])] == once
        once = ["champion", f"previous of {MODEL}", "previous"] * cut
        assert [change.standing for change in history(known["3"])] == once
    assert cut > 15


def test_a_try_out_has_no_standing_until_it_is_promoted(version, mlflow_settings: Settings):
    version(RANKS)
    set_reason(mlflow_settings, "1", "only looked at")
    assert champions.champion_of(mlflow_settings, RANKS) is None
    assert registry.find(mlflow_settings, "1").description == "try-out: only looked at"
    make_champion(mlflow_settings, "1", "it is good", "ann")
    assert champions.champion_of(mlflow_settings, RANKS) == "1"
    assert "tryout" not in registry.version_tags(mlflow_settings, "1")


def test_the_homes_setting_is_kept_with_the_registry_and_a_repeated_one_changes_nothing(mlflow_settings: Settings):
    assert champions.home_setting(mlflow_settings) is None
    champions.set_home_setting(mlflow_settings, "cluster", 8)
    first = champions.home_setting(mlflow_settings)
    assert first is not None
    assert str(first) == "cluster with 8 devices"
    champions.set_home_setting(mlflow_settings, "cluster", 8)
    assert champions.home_setting(mlflow_settings) == first
    champions.set_home_setting(mlflow_settings, None, None)
    assert champions.home_setting(mlflow_settings) is None
    assert registry.aliases(mlflow_settings) == {}
