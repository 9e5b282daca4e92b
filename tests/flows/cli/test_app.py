"""Wrong input: one sentence, exit code 1, nothing half-written, earlier results intact."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamshard.plan import read_plan
from tests.flows.commands import failed_with

TABLES = "name,rows,dim,pooling_factor\nusers,1000000,64,1\nitems,200000,64,12.5\nwords,50000,32,30\n"


def test_with_debug_an_error_is_a_traceback(tmp_path):
    command = [sys.executable, "-m", "flows.cli.app", "run", "--recipe", "big", "--home", str(tmp_path), "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_flow_that_fails_is_one_sentence_on_stderr_whatever_prefect_would_log(tmp_path):
    source = outside_pt(tmp_path / "source.pt")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PREFECT_LOGGING_LEVEL", "COLUMNS")
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from flows.cli.app import main; main()",
            "ingest",
            str(source),
            "--home",
            str(tmp_path),
        ],
        env=environment | {"PREFECT_HOME": str(tmp_path / "prefect")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("dreamshard: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.fixture
def tables(tmp_path) -> Path:
    path = tmp_path / "tables.csv"
    path.write_text(TABLES)
    return path


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_wrong_usage_exits_with_2(dreamshard, empty_home):
    assert dreamshard("place", home=empty_home).returncode == 2
    assert dreamshard("run", "--seed", "-1", home=empty_home).returncode == 2
    assert dreamshard("run", "--seed", str(2**31), home=empty_home).returncode == 2
    assert dreamshard("train", "--devices", "0", home=empty_home).returncode == 2


def test_an_unknown_recipe_is_one_sentence_that_lists_those_there_are(dreamshard, empty_home):
    failed_with(dreamshard("run", "--recipe", "big", home=empty_home), "'big'", "smoke", "default")


def test_an_unknown_testbed_is_one_sentence_before_anything_is_ingested(dreamshard, tmp_path):
    failed_with(
        dreamshard("run", "--recipe", "smoke", "--testbed", "mainframe", home=tmp_path), "'mainframe'", "simulated"
    )
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_a_home_that_cannot_be_written_is_one_sentence(dreamshard, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    failed_with(dreamshard("doctor", home=occupied / "below"), str(occupied), "cannot be written")


@pytest.mark.parametrize("command", [("models",), ("sql", "select 1"), ("promote", "2")])
def test_a_home_that_is_not_there_is_said_and_not_made_by_what_only_looks(dreamshard, tmp_path, command):
    failed_with(dreamshard(*command, home=tmp_path / "misspelt"), "there is no home", "misspelt", "dreamshard run")
    assert not (tmp_path / "misspelt").exists()


WRONG = {
    "placer": (("--memory-gb", "1", "--placer", "magic"), ("'magic'", "champion", "size_greedy")),
    "no champion": (("--memory-gb", "1"), ("no champion yet", "dreamshard run", "--hardware", "lookup_greedy")),
    "memory": (("--memory-gb", "0.13", "--placer", "size_greedy"), ("0.292 GiB", "add devices or memory")),
    "plan": (("--memory-gb", "1", "--placer", "size_greedy", "--current", "{empty}"), ("is not a plan",)),
    "folder": (("--memory-gb", "1", "--placer", "size_greedy", "--out", "{no}/plan"), ("does not exist",)),
    "file": (("--memory-gb", "1", "--placer", "size_greedy", "--out", "{here}"), ("is a folder",)),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_what_place_cannot_do_is_one_sentence(dreamshard, empty_home, tables, tmp_path, options, words):
    (tmp_path / "empty.json").write_text("{}")
    names = {"empty": tmp_path / "empty.json", "no": tmp_path / "none", "here": tmp_path}
    given = [option.format(**names) for option in options]
    failed_with(dreamshard("place", str(tables), "--devices", "2", *given, home=empty_home), *words)


@pytest.mark.parametrize("text", [None, "colour,taste\nred,sweet\n"])
def test_a_list_that_is_missing_or_none_is_one_sentence(dreamshard, empty_home, tmp_path, text):
    if text:
        (tmp_path / "wrong.csv").write_text(text)
    place = ("--devices", "2", "--memory-gb", "1", "--placer", "size_greedy")
    failed_with(dreamshard("place", str(tmp_path / "wrong.csv"), *place, home=empty_home), "wrong.csv")


def test_a_query_that_duckdb_cannot_answer_names_the_views(dreamshard, empty_home):
    failed_with(dreamshard("sql", "select * from nothing", home=empty_home), "cost_samples")


def test_a_table_that_no_device_holds_and_no_column_splits_is_one_sentence_and_no_plan_is_written(
    dreamshard, empty_home, tmp_path
):
    tables, out = tmp_path / "tables.csv", tmp_path / "plan.json"
    tables.write_text("name,rows,dim,pooling_factor\nusers,50000000,4,1\n")  # 0.75 GiB; a shard has 4 columns at least
    place = ("--devices", "2", "--memory-gb", "0.5", "--placer", "size_greedy", "--out", str(out))
    failed_with(dreamshard("place", str(tables), *place, home=empty_home), "'users'", "0.5 GiB")
    assert not out.exists()
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize("form", ["json", "csv", "torchrec"])
def test_place_writes_each_form_and_says_what_moves(dreamshard, empty_home, tables, tmp_path, form):
    out, place = tmp_path / "plan", ("--devices", "2", "--memory-gb", "1", "--placer", "size_greedy")
    first = dreamshard("place", str(tables), *place, "--out", str(tmp_path / "current.json"), home=empty_home)
    assert first.returncode == 0, first.sentence
    current = json.loads((tmp_path / "current.json").read_text())
    assert current["tables"].keys() == {"users", "items", "words"}
    moved = ("--current", str(tmp_path / "current.json"), "--format", form, "--out", str(out))
    if form == "torchrec":
        moved += ("--device-type", "cpu")
    done = dreamshard("place", str(tables), *place[:-1], "lookup_greedy", *moved, home=empty_home)
    assert done.returncode == 0, done.sentence
    assert "of 3 tables move" in done.stderr
    if form != "csv":
        assert read_plan(out).tables.keys() == {"users", "items", "words"}


def test_without_ingested_tables_what_a_list_lacks_is_said_to_follow_a_zipf_law(dreamshard, empty_home, tables):
    place = ("--devices", "2", "--memory-gb", "1", "--placer", "size_greedy")
    done = dreamshard("place", str(tables), *place, home=empty_home)
    assert "filled in by a Zipf law" in done.notes
    assert "ingested last" not in done.stderr


def truncated_pt(path: Path) -> Path:
    torch.save((torch.arange(10), torch.arange(11), torch.ones(1, 10, dtype=torch.int64)), path)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def outside_pt(path: Path) -> Path:
    torch.save((torch.tensor([-5, 1]), torch.tensor([0, 1, 2]), torch.ones(1, 2, dtype=torch.int64)), path)
    return path


def negative_lengths_pt(path: Path) -> Path:
    torch.save((torch.tensor([5, 1]), torch.tensor([0, 1, 2]), torch.tensor([[3, -1]])), path)
    return path


def not_gzip(path: Path) -> Path:
    target = path.with_suffix(".tsv.gz")
    target.write_bytes(gzip.compress(b"1\t2\n" * 50)[:-10])
    return target


@pytest.mark.parametrize("make", [truncated_pt, outside_pt, negative_lengths_pt, not_gzip])
def test_a_damaged_source_is_one_sentence_and_the_lake_stays_as_it_was(dreamshard, tmp_path, make):
    home = tmp_path / "home"
    source = make(tmp_path / "source.pt")
    failed_with(dreamshard("ingest", str(source), home=home), "source")
    assert not list((home / "lake" / "tables").rglob("*"))
    assert not list((home / "lake").rglob("*.tmp"))
