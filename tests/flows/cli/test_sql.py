"""`dreamshard sql` on a small lake: what is printed in a terminal and in a pipe, and what is written."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from flows.cli import terminal
from storage import notebook
from storage.lake import schemas
from storage.lake.catalog import VIEWS
from storage.settings import Settings
from storage.store import open_store
from tests.flows.commands import Done, dreamshard
from tests.helpers.lake import append_samples
from tests.helpers.samples import four_tables, make_sample


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four tables and one sample in which table `a` is alone on a device."""
    home = tmp_path_factory.mktemp("measured")
    lake, tables = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)})).lake, four_tables()
    version = dataset_version(tables)
    lake.write_dataset(tables, version, "by hand")
    task = PlacementTask(tables.select([0, 2, 3]), 2, 10**6, name="train-000")
    append_samples(lake, [make_sample(task, [1, 0, 0])], "run", 1, version)
    return home


@pytest.fixture
def sql(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.setenv("DREAMSHARD_HOME", str(measured))
    return lambda *arguments: dreamshard("sql", *arguments)


@pytest.mark.parametrize(("width", "in_terminal"), [(80, True), (140, False)], ids=["terminal", "pipe"])
def test_an_answer_too_wide_is_turned(
    sql: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, width: int, in_terminal: bool
):
    console = Console(width=width, force_terminal=in_terminal, no_color=True)
    monkeypatch.setattr(terminal, "OUT", console)
    lines = sql("from tables limit 2").stdout.splitlines()
    assert len([line for line in lines if line.startswith("pooling_factor")]) == 2
    assert [line.split() for line in lines if line.startswith("name ")] == [["name", "a"], ["name", "b/c"]]
    short = sql("select name, rows, dim from tables limit 1").stdout
    assert "name" in short.splitlines()[1]
    assert len(short.splitlines()) == 5


def test_long_columns_are_folded_in_a_terminal(sql: Callable[..., Done], monkeypatch: pytest.MonkeyPatch):
    query = "select name, 'thirteen words ' || repeat('of a sentence ', 9) as said, '[b]' as text from tables limit 2"
    whole = sql(query).stdout
    assert len(whole.splitlines()) == 6
    monkeypatch.setattr(terminal, "OUT", Console(width=60, force_terminal=True, color_system=None))
    lines = sql(query).stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split("│")[1].strip() for line in lines if "thirteen words" in line] == ["a", "b/c"]
    assert sum("[b]" in line for line in lines) == 2


def test_help_names_every_view(sql: Callable[..., Done]):
    shown = " ".join(sql("--help").stdout.replace("│", " ").split())
    assert [view for view in VIEWS if f"{view}," not in shown and f"{view};" not in shown] == []


def test_describe_lists_columns(sql: Callable[..., Done]):
    described = json.loads(sql("describe tables", "--json").stdout)
    assert [row["column_name"] for row in described] == schemas.TABLES.names


def test_answers_are_written_as_csv_and_parquet(sql: Callable[..., Done], tmp_path: Path):
    query = "select name, dim, [rows, dim] as both from tables order by rows"
    done = sql(query, "--csv", str(tmp_path / "a.csv"), "--parquet", str(tmp_path / "a.parquet"))
    assert done.returncode == 0, done.sentence
    assert done.stdout == ""
    written = pd.read_parquet(tmp_path / "a.parquet")
    assert written["name"].tolist() == pd.read_csv(tmp_path / "a.csv")["name"].tolist() == ["a", "b/c", "d", "e"]
    assert written["both"][0].tolist() == [10, 4]


def test_repeated_names_are_numbered(sql: Callable[..., Done], measured: Path):
    query = "select dim as a, rows as a from tables order by rows limit 1"
    assert json.loads(sql(query, "--json").stdout) == [{"a": 4, "a_1": 10}]
    assert notebook.query(query, measured).to_dict("records") == [{"a": 4, "a_1": 10}]


def test_what_cannot_be_asked_is_one_sentence(sql: Callable[..., Done]):
    assert "the views are versions, tables" in sql("from nowhere").sentence
    for nothing in ("", " -- no query", ";"):
        assert "asks for no rows" in sql(nothing).sentence


def test_costs_of_tables_are_those_measured_alone(sql: Callable[..., Done]):
    (row,) = json.loads(sql("from table_costs", "--json").stdout)
    assert (row["table_name"], row["origin"], row["samples"], row["is_current"]) == ("a", "measured", 1, True)
    assert row["compute_ms"] == pytest.approx(2 * 0.1 * (1 + 4))
    assert (row["hardware"], row["batch_size"], row["error"], row["model_version"]) == (
        "simulated H100",
        512,
        None,
        None,
    )


def test_views_are_data_frames(measured: Path, tmp_path: Path):
    assert notebook.view("tables", measured)["name"].tolist() == ["a", "b/c", "d", "e"]
    assert notebook.query("select sum(dim) as total from tables", measured)["total"].tolist() == [60]
    for name in VIEWS:
        described = notebook.query(f"describe {name}", measured)["column_name"].tolist()
        assert list(notebook.view(name, measured).columns) == described
    with pytest.raises(ValueError, match=r"the views are .*table_costs"):
        notebook.view("costs", measured)
    with pytest.raises(ValueError, match=r"there is no lake in"):
        notebook.view("tables", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_long_answer_is_printed_in_part_and_written_whole(sql: Callable[..., Done], tmp_path: Path):
    printed = sql("select range as r from range(100000000)", "--rows", "3")
    assert [line.split()[1] for line in printed.stdout.splitlines()[3:-1]] == ["0", "1", "2"]
    assert "more than 3 rows" in printed.stderr
    as_json = sql("from range(2000)", "--json")
    assert len(json.loads(as_json.stdout)) == 1000
    assert sql("from range(2000) where false", "--json").stdout == "[]\n"
    assert sql("from range(2000)", "--parquet", str(tmp_path / "a.parquet")).returncode == 0
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == 2000


def test_no_progress_of_a_long_query_is_in_its_answer(sql: Callable[..., Done]):
    [row] = json.loads(sql("select current_setting('enable_progress_bar') as shown", "--json").stdout)
    assert row["shown"] is False  # DuckDB begins to show it after two seconds


def test_a_query_of_more_memory_than_allowed_is_one_sentence(sql: Callable[..., Done]):
    refused = sql("select list(range) from range(100000000)", "--memory-gb", "0.1")
    assert "needs more than 0.1 GiB of memory" in refused.sentence


def test_long_texts_are_cut_where_they_are_printed_for_people_only(sql: Callable[..., Done]):
    long = "select repeat('ab ', 20000) as text, 1 as number"
    printed = sql(long)
    assert printed.returncode == 0
    assert "... (60,000 characters)" in printed.stdout
    assert len(printed.stdout) < 5000
    assert json.loads(sql(long, "--json").stdout) == [{"text": "ab " * 20000, "number": 1}]
