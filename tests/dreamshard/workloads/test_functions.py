from pathlib import Path

import pytest

from dreamshard.workloads import call, is_function


def test_functions_are_told_from_files_and_addresses():
    assert all(map(is_function, ("model.py:make_model", "/a b/model.py:make", "package.model:make")))
    assert not any(map(is_function, ("tables.csv", "s3://bucket/tables/", "model.py", "model.py:", "meta-dlrm-2021")))


def written(folder: Path, text: str, name: str = "made_here.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_functions_of_modules_and_of_files_are_called(tmp_path):
    written(tmp_path, "VALUE = 7\n", "made_here_neighbour.py")
    file = written(tmp_path, "from made_here_neighbour import VALUE\ndef make(): return VALUE\n")
    assert call(f"{file}:make", "there is no model") == 7
    assert call("platform:python_version", "there is no model").startswith("3.")
    (tmp_path / "other").mkdir()
    of_the_same_name = written(tmp_path / "other", "def make(): return 2\n")
    assert call(f"{of_the_same_name}:make", "there is no model") == 2


@pytest.mark.parametrize("text", ["def other(): pass\n", "def make(): raise KeyError('rows')\n"])
def test_what_is_wrong_with_a_function_is_one_sentence(tmp_path, text):
    with pytest.raises(ValueError) as caught:
        call(f"{written(tmp_path, text)}:make", "there is no model")
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_module_is_named(tmp_path):
    with pytest.raises(ValueError):
        call(f"{tmp_path}/absent.py:make", "there is no model")
