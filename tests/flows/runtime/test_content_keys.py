from dataclasses import replace
from pathlib import Path

import pytest

from dreamshard.recipes import RECIPES
from flows.runtime import content_keys
from flows.runtime.content_keys import content_key, library_hash

SMOKE = RECIPES["smoke"]


@pytest.fixture
def fresh_hash():
    library_hash.cache_clear()
    yield
    library_hash.cache_clear()


def test_equal_inputs_have_one_key_and_any_other_input_has_another():
    assert content_key("dataset", SMOKE, 0) == content_key("dataset", SMOKE, 0)
    assert content_key("dataset", SMOKE, 0) != content_key("dataset", SMOKE, 1)
    assert content_key("dataset", SMOKE, 0) != content_key("dataset", replace(SMOKE, testbed="simulated"), 0)


def test_a_changed_library_file_changes_every_key(tmp_path, monkeypatch, fresh_hash):
    package = tmp_path / "library"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("x = 1\n")

    class Library:
        __file__ = str(package / "__init__.py")

    monkeypatch.setattr(content_keys, "dreamshard", Library)
    before = content_key("same")
    (package / "deep.py").write_text("x = 2\n")
    library_hash.cache_clear()
    assert content_key("same") != before


def test_what_is_no_plain_content_is_refused_as_a_key():
    with pytest.raises(TypeError, match="cannot be part of a cache key"):
        content_key(object())
    assert content_key(Path("x")) == content_key("x")
