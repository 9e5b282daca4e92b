import importlib.metadata
from dataclasses import replace

from dreamshard.recipes import RECIPES
from flows.runtime.tasks import content_key


def test_a_key_changes_with_each_input_and_the_version_of_the_package(monkeypatch):
    before, smoke = content_key(RECIPES["smoke"], 0), RECIPES["smoke"]
    assert content_key(smoke, 0) == before not in (content_key(smoke, 1), content_key(replace(smoke, testbed="x"), 0))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "99")
    assert content_key(smoke, 0) != before
