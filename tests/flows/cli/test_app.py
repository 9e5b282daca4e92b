import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.flows.commands import failed_with

TABLES = "name,rows,dim,pooling_factor\nusers,1000000,64,1\nitems,200000,64,12.5\nwords,50000,32,30\n"
PLACE = ("--devices", "2", "--memory-gb", "1", "--placer")


@pytest.fixture
def tables(tmp_path) -> Path:
    path = tmp_path / "tables.csv"
    path.write_text(TABLES)
    return path


def alone(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    """Run a command as a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFECT_LOGGING_LEVEL", "COLUMNS")}
    command = [sys.executable, "-m", "flows.cli.app", *map(str, arguments)]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False, timeout=600)


def test_help_imports_no_torch_and_debug_shows_a_traceback(tmp_path):
    code = "import sys; from flows.cli.app import main; sys.argv = ['dreamshard', '--help']\n"
    code += "try: main()\nfinally: assert not {'torch', 'prefect', 'mlflow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    done = alone("place", "no.csv", "--devices", "2", "--home", tmp_path, "--debug")
    assert (done.returncode, "Traceback" in done.stderr) == (1, True)


def test_a_failed_flow_is_one_sentence_on_stderr(tmp_path):
    source = outside_pt(tmp_path / "source.pt")
    (tmp_path / "source.tables.csv").write_text("name,rows,dim\nt0,10,16\n")
    done = alone("ingest", source, "--home", tmp_path, PREFECT_HOME=str(tmp_path / "prefect"))
    assert (done.returncode, done.stderr[:12], done.stderr.count("\n")) == (1, "dreamshard: ", 1), done.stderr


@pytest.mark.parametrize(
    "words",
    ["place", "run --seed -1", f"run --seed {2**31}", "train --devices 0", "watch a b", "plase x", "promote 3 --ask"],
)
def test_wrong_usage_exits_with_2(dreamshard, new_home, words):
    done = dreamshard(*words.split(), home=new_home)
    assert (done.returncode, done.stderr[:12]) == (2, "dreamshard: ")


@pytest.mark.parametrize("form", ["json", "csv", "torchrec"])
def test_place_writes_each_form_and_says_what_moves(dreamshard, new_home, tables, tmp_path, form):
    current, out = tmp_path / "current.json", tmp_path / "plan"
    first = dreamshard("place", tables, *PLACE, "size_greedy", "--out", current, home=new_home)
    assert "assumed by a Zipf law: " in first.notes, first.sentence
    assert json.loads(current.read_text())["tables"].keys() == {"users", "items", "words"}
    moved = ("--current", current, "--format", form, "--device-type", "cpu", "--out", out)
    done = dreamshard("place", tables, *PLACE, "lookup_greedy", *moved, home=new_home)
    assert "of 3 tables move" in done.stderr, done.sentence
    assert [name for name in ("users", "items", "words") if name not in out.read_text()] == []


def outside_pt(path: Path) -> Path:
    """Lookups of which one is of a negative row."""
    torch.save((torch.tensor([-5, 1]), torch.arange(3), torch.tensor([[1, 1]])), path)
    return path


def truncated(path: Path) -> Path:
    target = path.with_suffix(".tsv.gz")
    target.write_bytes(gzip.compress(b"1\t2\n" * 50)[:-10])
    return target


@pytest.mark.parametrize("make", [outside_pt, truncated])
def test_a_damaged_source_leaves_the_lake_unchanged(dreamshard, tmp_path, make):
    home = tmp_path / "home"
    failed_with(dreamshard("ingest", make(tmp_path / "source.pt"), home=home), "source")
    assert not list((home / "lake" / "tables").rglob("*"))
    assert not list((home / "lake").rglob("*.tmp"))
