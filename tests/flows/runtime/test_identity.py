import importlib.metadata
from dataclasses import replace

from dreamshard.recipes import RECIPES
from flows.runtime.identity import content_key

SMOKE = RECIPES["smoke"]


def test_equal_inputs_have_one_key_and_others_another():
    assert content_key("dataset", SMOKE, 0) == content_key("dataset", SMOKE, 0) != content_key("dataset", SMOKE, 1)
    assert content_key(replace(SMOKE, testbed="simulated")) != content_key(SMOKE)


def test_another_version_of_the_package_changes_every_key(monkeypatch):
    before = content_key("same")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "99")
    assert content_key("same") != before
