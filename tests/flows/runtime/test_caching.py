from dataclasses import replace
from pathlib import Path

import pytest

from dreamshard.recipes import smoke
from flows.runtime import caching
from flows.runtime.caching import content_key, file_hash, library_hash


@pytest.fixture
def fresh_hash():
    library_hash.cache_clear()
    yield
    library_hash.cache_clear()


def test_equal_inputs_have_one_key_and_any_other_input_has_another():
    assert content_key("dataset", smoke(), 0) == content_key("dataset", smoke(), 0)
    assert content_key("dataset", smoke(), 0) != content_key("dataset", smoke(), 1)
    assert content_key("dataset", smoke(), 0) != content_key("dataset", replace(smoke(), testbed="simulated"), 0)


def test_a_changed_library_file_changes_every_key(tmp_path, monkeypatch, fresh_hash):
    package = tmp_path / "library"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("x = 1\n")

    class Library:
        __file__ = str(package / "__init__.py")

    monkeypatch.setattr(caching, "dreamshard", Library)
    before = content_key("same")
    (package / "deep.py").write_text("x = 2\n")
    library_hash.cache_clear()
    assert content_key("same") != before


def test_the_builds_of_fbgemm_are_part_of_the_key(monkeypatch, fresh_hash):
    before = library_hash()
    monkeypatch.setattr(caching, "_version", lambda library: "9.9" if library == "fbgemm-gpu" else "")
    library_hash.cache_clear()
    without_gpu = library_hash()
    monkeypatch.setattr(caching, "_version", lambda library: "9.9" if library == "fbgemm-gpu-cpu" else "")
    library_hash.cache_clear()
    assert len({before, without_gpu, library_hash()}) == 3
    assert caching._version("no-such-library") == ""


def test_the_flows_own_source_is_part_of_an_evaluations_key_and_not_of_a_trainings(monkeypatch):
    from flows.tasks.promotion import evaluate_placers

    class Context:
        task = evaluate_placers

    monkeypatch.setenv("DREAMSHARD_HOME", "/tmp")
    evaluation, training = evaluate_placers.cache_policy, content_key("training")
    before = evaluation.compute_key(Context, {"training": "t"}, {})
    monkeypatch.setattr(caching, "flows_hash", lambda: "other")
    assert evaluation.compute_key(Context, {"training": "t"}, {}) != before
    assert content_key("training") == training


def test_a_file_is_known_by_its_bytes_not_its_name(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"tables")
    second.write_bytes(b"tables")
    assert file_hash(first) == file_hash(second)
    second.write_bytes(b"other")
    assert file_hash(first) != file_hash(second)


def test_what_is_no_plain_content_is_refused_as_a_key():
    with pytest.raises(TypeError, match="cannot be part of a cache key"):
        content_key(object())
    assert content_key(Path("x")) == content_key("x")
