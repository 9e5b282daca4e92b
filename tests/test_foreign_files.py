"""Every reader of what others write, on 1,000 damaged inputs and 100 wrong ones each; `make chaos-all` tries far more."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.readers import failures
from tests.helpers.bombs import bombs
from tests.helpers.foreign_files import readers

READERS = readers()


@pytest.mark.parametrize(("trial", "scale", "inputs"), [("readers", 0.01, 1000), ("fuzzed", 0.01, 100)])
def test_damaged_or_wrong_input_is_read_or_refused_in_one_sentence(trial: str, scale: float, inputs: int):
    code = (
        f"import json; from tests.chaos.{trial} import run; print(json.dumps([vars(row) for row in run({scale}, 1)]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert [row for row in rows if row["survived"] != row["tried"]] == []
    tried = {row["what"].partition(": ")[2]: row["tried"] for row in rows}
    assert tried == {name: reader.inputs_of(inputs, 1) for name, reader in READERS.items()}


@pytest.mark.parametrize("name", sorted(READERS))
def test_undamaged_input_is_read(name: str, tmp_path: Path):
    reader = READERS[name]
    for number, content in enumerate(reader.valid):
        file = tmp_path / f"{number}{reader.ending}"
        file.write_bytes(content)
        reader.read(file)


@pytest.mark.parametrize(("name", "bomb"), bombs().values(), ids=bombs())
def test_what_is_made_to_fill_memory_or_hang_is_read_within_bounds_or_refused(name: str, bomb: Callable[[], bytes]):
    reader = READERS[name]
    assert failures(replace(reader, valid=(reader.valid[0], bomb())), 2, 0, 0) == []
