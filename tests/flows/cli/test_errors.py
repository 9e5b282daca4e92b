"""The most frequent errors: the command that a person typed, and the sentence that it ends with."""

import shlex
from pathlib import Path

import pytest
import yaml

SENTENCES = yaml.safe_load(Path(__file__).with_name("errors.yaml").read_text())
FILES = {"tables.csv": "name,rows,dim\nusers,1000000,64", "colours.csv": "red\nr", "empty.csv": "", "empty.json": "{}"}


@pytest.mark.parametrize("command", SENTENCES)
def test_an_error_is_one_sentence_and_leaves_nothing(in_home, new_home, tmp_path, monkeypatch, command):
    pytest.importorskip("torchrec")  # whose planner is among the placers
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = in_home(*shlex.split(command))
    said = done.sentence.replace(str(new_home), "HOME").replace(str(tmp_path), "FOLDER")
    assert (done.returncode, said) == (1, SENTENCES[command])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    assert not list((new_home / "lake").rglob("*.parquet"))
