import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dreamshard.constraints import parse_constraints
from dreamshard.files import InputError, error_sentence, reading, replacing, without_passwords


def test_a_file_appears_complete_in_its_folder(tmp_path: Path):
    target = tmp_path / "new" / "a.json"
    with replacing(target) as temporary:
        temporary.write_text("content")
    with suppress(KeyError), replacing(target) as temporary:
        temporary.write_text("half")
        raise KeyError  # a write that fails leaves the old file alone
    assert target.read_text() == "content"
    assert [path.name for path in target.parent.iterdir()] == ["a.json"]


@pytest.mark.processes
def test_a_killed_writer_leaves_only_a_temporary_file(tmp_path: Path):
    code = """
import sys
from pathlib import Path
from dreamshard.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("wrote", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "wrote\n"
        os.kill(writer.pid, signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f".a.{writer.pid}.")
    assert left.suffix == ".tmp"


@pytest.mark.parametrize(
    "error", [KeyError("x"), OverflowError("y"), AssertionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "z")]
)
def test_an_error_of_a_library_is_one_sentence_with_its_cause(error: Exception):
    with pytest.raises(ValueError) as raised, reading("f", "is not a plan", "write it again"):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("text", ["- " * 10_000, "&a [*b]", "!!python/object/apply:os.system [id]"])
def test_yaml_that_is_damaged_or_would_run_code_is_refused(text: str):
    with pytest.raises(InputError):
        parse_constraints(text, (), 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:s%40cret@db:5432/mlflow is away", "postgresql://...@db:5432/mlflow is away"),
        ("'https://:s3cret@host/x' and mailtos://a:b@c?d=e", "'https://...@host/x' and mailtos://...@c?..."),
        ("http://host:4200/api?at=10:30@noon", "http://host:4200/api?..."),
        ("s3://AKIA:s3cr@et@bucket/x.csv", "s3://...@bucket/x.csv"),
        ("get https://s3cret@host/x.csv", "get https://...@host/x.csv"),
        ("'https://host/x.csv?X-Amz-Signature=s3cret&sig=s3cret', so", "'https://host/x.csv?...', so"),
        ("http://host:5000/#/runs/1?workflowType=training", "http://host:5000/#/runs/1?workflowType=training"),
        ("did you mean http://host/x.csv?", "did you mean http://host/x.csv?"),
        ("sqlite:////home/ada@home/mlflow.db", "sqlite:////home/ada@home/mlflow.db"),
    ],
)
def test_a_password_in_an_address_is_not_shown(text: str, shown: str):
    assert without_passwords(text) == shown
    assert error_sentence(ValueError(text)) == shown
